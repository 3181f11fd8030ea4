// SPDX-License-Identifier: Apache-2.0

// A real OpenTelemetry Collector for the end-to-end tests: upstream's own parts, linked and nothing else.
// What it is not: it holds no code of ours that touches telemetry. Source: go.opentelemetry.io/collector/otelcol.
package main

import (
	"log"

	"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/fileexporter"
	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/healthcheckextension"
	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/storage/filestorage"
	"github.com/open-telemetry/opentelemetry-collector-contrib/processor/filterprocessor"
	"github.com/open-telemetry/opentelemetry-collector-contrib/receiver/fluentforwardreceiver"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/envprovider"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/confmap/provider/yamlprovider"
	"go.opentelemetry.io/collector/connector"
	"go.opentelemetry.io/collector/connector/forwardconnector"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/debugexporter"
	"go.opentelemetry.io/collector/exporter/otlpexporter"
	"go.opentelemetry.io/collector/exporter/otlphttpexporter"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/batchprocessor"
	"go.opentelemetry.io/collector/processor/memorylimiterprocessor"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

// byType keys factories by their component type, as otelcol.Factories wants them.
func byType[F component.Factory](factories ...F) map[component.Type]F {
	keyed := make(map[component.Type]F, len(factories))
	for _, factory := range factories {
		keyed[factory.Type()] = factory
	}
	return keyed
}

func parts() (otelcol.Factories, error) {
	return otelcol.Factories{
		Receivers: byType[receiver.Factory](
			otlpreceiver.NewFactory(), fluentforwardreceiver.NewFactory()),
		Processors: byType[processor.Factory](
			batchprocessor.NewFactory(), memorylimiterprocessor.NewFactory(), filterprocessor.NewFactory()),
		Exporters: byType[exporter.Factory](
			debugexporter.NewFactory(), fileexporter.NewFactory(),
			otlpexporter.NewFactory(), otlphttpexporter.NewFactory()),
		Connectors: byType[connector.Factory](forwardconnector.NewFactory()),
		Extensions: byType[extension.Factory](filestorage.NewFactory(), healthcheckextension.NewFactory()),
		// A nil Telemetry is refused (FACTS 35).
		Telemetry: otelconftelemetry.NewFactory(),
	}, nil
}

func main() {
	command := otelcol.NewCommand(otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{
			Command: "perfbuf-test-collector", Description: "Collector for otel-perfbuf's tests", Version: "0.161.0",
		},
		Factories: parts,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			DefaultScheme: "env",
			ProviderFactories: []confmap.ProviderFactory{
				fileprovider.NewFactory(), envprovider.NewFactory(), yamlprovider.NewFactory(),
			},
		}},
	})
	if err := command.Execute(); err != nil {
		log.Fatal(err)
	}
}
