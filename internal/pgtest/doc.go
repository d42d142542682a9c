// Package pgtest gives tests real PostgreSQL servers in one line:
//
//	server := pgtest.Start(t)                      // dies with the test
//	publisher, target := pgtest.Pair(t)            // two at once
//	publisher, target := pgtest.Shared(t)          // one pair for all tests of a package
//	uri := pgtest.Database(t, server)              // a fresh database
//	pgtest.Exec(t, uri, `create table t (a int)`)
//	require.Equal(t, "1|\n2|x", pgtest.Query(t, uri, `select a, b from t order by a`))
//	pgtest.WaitFor(t, uri, `select count(*) from t`, "2")
//
// Every function fails the test instead of returning an error. A failed test
// prints what its servers logged. The servers are of package cluster, which also
// explains where they come from.
package pgtest
