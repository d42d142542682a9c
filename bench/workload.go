package main

// workload is a schema and a procedure that writes one round's backlog, a
// transaction at a time where n says so.
type workload struct {
	// schema runs on both ends.
	schema []string
	// fill writes n transactions, or n rows in one.
	fill string
	// tables to compare at the end.
	tables []string
}

var workloads = map[string]workload{
	"tpcb": {
		schema: []string{
			`CREATE TABLE branches (bid int PRIMARY KEY, bbalance int, filler char(88))`,
			`CREATE TABLE tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84))`,
			`CREATE TABLE accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84))`,
			`CREATE TABLE history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22))`,
			`INSERT INTO branches SELECT g, 0 FROM generate_series(1, 10) g`,
			`INSERT INTO tellers SELECT g, g / 10, 0 FROM generate_series(1, 100) g`,
			`INSERT INTO accounts SELECT g, g / 10000, 0, '' FROM generate_series(1, 100000) g`,
		},
		fill: `DO $$ DECLARE delta int; account int; teller int; BEGIN
			FOR i IN 1..%d LOOP
				delta := random() * 10000 - 5000; account := 1 + random() * 99999; teller := 1 + random() * 99;
				UPDATE accounts SET abalance = abalance + delta WHERE aid = account;
				UPDATE tellers SET tbalance = tbalance + delta WHERE tid = teller;
				UPDATE branches SET bbalance = bbalance + delta WHERE bid = 1 + teller / 11;
				INSERT INTO history VALUES (teller, 1 + teller / 11, account, delta, now());
				COMMIT;
			END LOOP; END $$`,
		tables: []string{"branches", "tellers", "accounts", "history"},
	},
	"insert": {
		schema: []string{`CREATE TABLE rows (id bigserial PRIMARY KEY, a int, b text)`},
		fill:   `DO $$ BEGIN FOR i IN 1..%d LOOP INSERT INTO rows (a, b) VALUES (i, 'some text of a row'); COMMIT; END LOOP; END $$`,
		tables: []string{"rows"},
	},
	"load": {
		schema: []string{`CREATE TABLE rows (id bigserial PRIMARY KEY, a int, b text)`},
		fill:   `INSERT INTO rows (a, b) SELECT g, 'some text of a row' FROM generate_series(1, %d) g`,
		tables: []string{"rows"},
	},
	"update": {
		schema: []string{
			`CREATE TABLE rows (id bigserial PRIMARY KEY, a int, b text)`,
			`INSERT INTO rows (a, b) SELECT g, 'some text of a row' FROM generate_series(1, 300000) g`,
		},
		fill:   `UPDATE rows SET a = a + 1 WHERE id <= %d`,
		tables: []string{"rows"},
	},
	"delete": {
		schema: []string{`CREATE TABLE rows (id bigserial PRIMARY KEY, a int, b text)`},
		fill:   `BEGIN; INSERT INTO rows (a, b) SELECT g, 'some text of a row' FROM generate_series(1, %[1]d) g; DELETE FROM rows; COMMIT`,
		tables: []string{"rows"},
	},
}
