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
// connections, subscriptions, slots, prepared transactions, and the origins that
// carry its OID in their names.
func Database(t testing.TB, server *cluster.Cluster) string {
	t.Helper()
	name := databaseName(t.Name())
	Exec(t, server.URI("postgres"), `create database `+name)
	t.Cleanup(func() {
		// A test that ended the server alone needs no order in it.
		if server.Running() {
			dropDatabase(t, server, name)
		}
	})
	return server.URI(name)
}

func dropDatabase(t testing.TB, server *cluster.Cluster, name string) {
	t.Helper()
	administrator, inside := server.URI("postgres"), server.URI(name)
	oid := Query(t, administrator, `select oid from pg_database where datname = $1`, name)
	if oid == "" {
		return
	}
	for _, subscription := range lines(Query(t, inside, `select quote_ident(subname) from pg_subscription where subdbid = $1`, oid)) {
		// Without its slot, which may be on a server that is gone.
		Exec(t, inside, `alter subscription `+subscription+` disable`,
			`alter subscription `+subscription+` set (slot_name = none)`, `drop subscription `+subscription)
	}
	for _, gid := range lines(Query(t, inside, `select quote_literal(gid) from pg_prepared_xacts where database = current_database()`)) {
		Exec(t, inside, `rollback prepared `+gid)
	}
	WaitFor(t, administrator, `select pg_terminate_backend(pid) from pg_stat_activity where datname = '`+name+`'`, "")
	// Older majors report a walsender gone shortly before it lets go of its slot.
	WaitFor(t, administrator, `select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = '`+name+`'`, "")
	Exec(t, administrator,
		`select pg_replication_origin_drop(roname) from pg_replication_origin where roname ~ '(^|_)`+oid+`(_|$)'`,
		`drop database `+name)
}

func lines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
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
