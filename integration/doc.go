// Package integration tests pgapply against real PostgreSQL servers.
//
// Most tests run the engine in this process between two fresh databases
// (harness_test.go). Those that kill it run the program itself
// (process_test.go).
package integration
