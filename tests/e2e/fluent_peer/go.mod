module otel-perfbuf/tests/fluent_peer

go 1.26.0

require (
	github.com/IBM/fluent-forward-go v0.4.0
	github.com/tinylib/msgp v1.6.4
)

require (
	github.com/google/uuid v1.6.0 // indirect
	github.com/gorilla/websocket v1.4.2 // indirect
	github.com/philhofer/fwd v1.2.0 // indirect
)
