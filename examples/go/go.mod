module example.invalid/trigger

go 1.21
