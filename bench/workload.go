package main

import (
	"context"
	"fmt"
	"strings"
)

// workload is a schema and transactions on the publisher.
type workload struct {
	name, title string
	// schema runs on both ends, and target only there.
	schema, target []string
	// tables to compare after every drain.
	tables []string
	// fill writes the backlog. A workload with live has none: it is measured while
	// its transactions run.
	fill string
	// reset takes a live workload's publisher back to the start state.
	reset []string
	live  func(context.Context, *drain) error
	// copied tables are there from the start, filled on the publisher and empty on the
	// target.
	copied bool
	// contenders that take part unless the command line says who.
	contenders []contender
}

// workloads are all that there are, with copies of so large a part of their full size.
func workloads(copyScale float64) []workload {
	return append([]workload{
		{
			name: "W1", title: "50,000 TPC-B transactions at scale 10",
			schema: tpcbSchema, tables: []string{"branches", "tellers", "accounts", "history"},
			fill: tpcbFill, contenders: ordinary("pgapply+rtt=30ms"),
		},
		{
			name: "W2", title: "100,000 one-row inserts",
			schema: rowsSchema(0), tables: []string{"rows"},
			fill:       `DO $$ BEGIN FOR i IN 1..100000 LOOP INSERT INTO rows VALUES (i, i, 'some text of a row'); COMMIT; END LOOP; END $$`,
			contenders: ordinary("pgapply+rtt=30ms"),
		},
		{
			name: "W3", title: "one 1,000,000-row insert",
			schema: rowsSchema(0), tables: []string{"rows"},
			fill: insertMillion, contenders: large(),
		},
		{
			name: "W4", title: "one 300,000-row update",
			schema: rowsSchema(300_000), tables: []string{"rows"},
			fill: updateAll, contenders: large(),
		},
		{
			name: "W5", title: "one 300,000-row delete",
			schema: rowsSchema(300_000), tables: []string{"rows"},
			fill: `DELETE FROM rows`, contenders: large(),
		},
		{
			name: "W6", title: "hot rows: 30,000 transactions on 10 keys",
			schema: rowsSchema(10), tables: []string{"rows"},
			fill:       `DO $$ BEGIN FOR i IN 1..30000 LOOP UPDATE rows SET a = a + i WHERE id = 1 + i % 10; COMMIT; END LOOP; END $$`,
			contenders: ordinary(),
		},
		{
			name: "W7", title: "independent keys: 30,000 transactions of 10 updates",
			schema: rowsSchema(300_000), tables: []string{"rows"},
			// 7919 has no divisor in common with the number of rows: each of them is
			// updated once, in an order that jumps.
			fill: `DO $$ BEGIN FOR i IN 0..29999 LOOP
				UPDATE rows SET a = a + i WHERE id = ANY (ARRAY(SELECT 1 + (i * 10 + j)::bigint * 7919 % 300000 FROM generate_series(0, 9) j));
				COMMIT; END LOOP; END $$`,
			contenders: ordinary(),
		},
		{
			name: "W8", title: "REPLICA IDENTITY FULL, 1,000 updates of a 100,000-row table with a boolean index before a unique one",
			schema: []string{
				`CREATE TABLE rows (id int NOT NULL, flag boolean NOT NULL, a int, b text)`,
				`INSERT INTO rows SELECT g, g % 2 = 0, g, 'some text of a row' FROM generate_series(1, 100000) g`,
				`CREATE INDEX rows_flag ON rows (flag)`,
				`CREATE UNIQUE INDEX rows_id ON rows (id)`,
				`ALTER TABLE rows REPLICA IDENTITY FULL`,
			},
			tables:     []string{"rows"},
			fill:       `DO $$ BEGIN FOR i IN 0..999 LOOP UPDATE rows SET a = a + 1 WHERE id = 1 + i::bigint * 7919 % 100000; COMMIT; END LOOP; END $$`,
			contenders: mustParse("decode,native,pgapply,pgapply+binary"),
		},
		{
			name: "W9", title: "idle latency: 200 transactions, 50 ms apart",
			schema: ticksSchema, target: ticksTarget, tables: []string{"ticks"},
			reset: []string{`TRUNCATE ticks`}, live: latencies,
			contenders: mustParse("native,pgapply"),
		},
		{
			name: "L3", title: "lag after the commit of one 1,000,000-row insert",
			schema: rowsSchema(0), tables: []string{"rows"},
			reset: []string{`TRUNCATE rows`}, live: lagBehind(insertMillion),
			contenders: mustParse("native+streaming=parallel,pgapply"),
		},
		{
			name: "L4", title: "lag after the commit of one 300,000-row update",
			schema: rowsSchema(300_000), tables: []string{"rows"},
			reset: []string{`TRUNCATE rows`, rowsSchema(300_000)[1], `VACUUM ANALYZE rows`}, live: lagBehind(updateAll),
			contenders: mustParse("native+streaming=parallel,pgapply"),
		},
	}, copyWorkloads(copyScale)...)
}

// ordinary are the contenders of many small transactions, which are never streamed.
func ordinary(more ...string) []contender {
	return append(mustParse("decode,native,native+binary,pgapply,pgapply+binary"), mustParse(more...)...)
}

// large are the contenders of one large transaction. Decode-only receives it at its
// commit, and is compared with the others that do.
func large() []contender {
	return mustParse("decode", "native+streaming=off", "native+streaming=on", "native+streaming=parallel",
		"native+binary+streaming=off", "pgapply+streaming=off", "pgapply", "pgapply+binary")
}

// mustParse reads contenders that are written down here.
func mustParse(names ...string) []contender {
	contenders, err := parseContenders(strings.Join(names, ","))
	if err != nil {
		panic(err)
	}
	return contenders
}

func workloadNames() (names []string) {
	for _, w := range workloads(1) {
		names = append(names, w.name)
	}
	return names
}

func findWorkload(name string, copyScale float64) (workload, error) {
	for _, w := range workloads(copyScale) {
		if w.name == name {
			return w, nil
		}
	}
	return workload{}, fmt.Errorf("no workload %q: there are %s", name, strings.Join(workloadNames(), ", "))
}

// rowsSchema is a narrow table with so many rows.
func rowsSchema(rows int) []string {
	return []string{
		`CREATE TABLE rows (id bigint PRIMARY KEY, a int, b text)`,
		fmt.Sprintf(`INSERT INTO rows SELECT g, g, 'some text of a row' FROM generate_series(1, %d) g`, rows),
	}
}

const (
	insertMillion = `INSERT INTO rows SELECT g, g, 'some text of a row' FROM generate_series(1, 1000000) g`
	updateAll     = `UPDATE rows SET a = a + 1`
)

// The tables and the transaction of pgbench (TPC-B, "sort of"), whose names they
// bear without its prefix.
var tpcbSchema = []string{
	`CREATE TABLE branches (bid int PRIMARY KEY, bbalance int, filler char(88))`,
	`CREATE TABLE tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84))`,
	`CREATE TABLE accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84))`,
	`CREATE TABLE history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22))`,
	`INSERT INTO branches SELECT g, 0 FROM generate_series(1, 10) g`,
	`INSERT INTO tellers SELECT g, 1 + (g - 1) / 10, 0 FROM generate_series(1, 100) g`,
	`INSERT INTO accounts SELECT g, 1 + (g - 1) / 100000, 0, '' FROM generate_series(1, 1000000) g`,
}

const tpcbFill = `DO $$ DECLARE delta int; account int; teller int; branch int; BEGIN
	PERFORM setseed(0.5);
	FOR i IN 1..50000 LOOP
		delta := floor(random() * 10001) - 5000; account := 1 + floor(random() * 1000000);
		teller := 1 + floor(random() * 100); branch := 1 + floor(random() * 10);
		UPDATE accounts SET abalance = abalance + delta WHERE aid = account;
		UPDATE tellers SET tbalance = tbalance + delta WHERE tid = teller;
		UPDATE branches SET bbalance = bbalance + delta WHERE bid = branch;
		INSERT INTO history VALUES (teller, branch, account, delta, now());
		COMMIT;
	END LOOP; END $$`
