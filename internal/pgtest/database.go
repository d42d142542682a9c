package pgtest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"pgapply/internal/cluster"
)

// Database creates a database named after the test and returns its connection
// string. With the test it goes away, and with it what replication hung on it:
// connections, slots, prepared transactions and the origins that carry its OID in
// their names.
func Database(t testing.TB, server *cluster.Cluster) string {
	t.Helper()
	name := databaseName(t.Name())
	administrator := server.URI("postgres")
	Exec(t, administrator, `create database `+name)
	uri := server.URI(name)
	t.Cleanup(func() {
		if !server.Running() {
			return // the test ended it, and its directory goes too
		}
		for gid := range strings.Lines(Query(t, uri, `select quote_literal(gid) from pg_prepared_xacts where database = current_database()`)) {
			Exec(t, uri, `rollback prepared `+gid)
		}
		oid := Query(t, administrator, `select oid from pg_database where datname = $1`, name)
		WaitFor(t, administrator, `select pg_terminate_backend(pid) from pg_stat_activity where datname = '`+name+`'`, "")
		Exec(t, administrator,
			`select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = '`+name+`'`,
			`select pg_replication_origin_drop(roname) from pg_replication_origin where roname ~ '(^|_)`+oid+`(_|$)'`,
			`drop database `+name)
	})
	return uri
}

// databaseName makes a short identifier that needs no quotes and is not taken.
func databaseName(test string) string {
	word := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		default:
			return '_'
		}
	}, test)
	return fmt.Sprintf("t_%.40s_%08x", word, rand.Uint32())
}
