package main

import "fmt"

// copyWorkloads are tables to be copied, of so large a part of their full size.
func copyWorkloads(scale float64) []workload {
	of := func(full int) int { return max(1, int(float64(full)*scale)) }
	accounts, documents, small := of(3_000_000), of(1_000_000), of(200)
	var names []string
	for i := range small {
		names = append(names, fmt.Sprint("small", i+1))
	}
	return []workload{
		{
			name: "C1", title: fmt.Sprintf("copy of one table of pgbench with %s rows and a primary key", grouped(accounts)),
			schema: []string{`CREATE TABLE accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84))`},
			tables: []string{"accounts"}, copied: true,
			fill:       fmt.Sprintf(`INSERT INTO accounts SELECT g, 1 + (g - 1) / 100000, 0, '' FROM generate_series(1, %d) g`, accounts),
			contenders: mustParse("native,native+binary,pipe,pipe+binary,pgapply,pgapply+split=67108864"),
		},
		{
			name: "C2", title: fmt.Sprintf("copy of one table with %s rows of text and jsonb, a primary key and two more indexes", grouped(documents)),
			schema: []string{
				`CREATE TABLE documents (id bigint PRIMARY KEY, owner int NOT NULL, title text NOT NULL, body text, attributes jsonb, made timestamptz NOT NULL)`,
				`CREATE INDEX documents_title ON documents (title)`,
				`CREATE INDEX documents_owner ON documents (owner, made)`,
			},
			tables: []string{"documents"}, copied: true,
			// md5 gives titles and owners in no order, as real keys are in none.
			fill: fmt.Sprintf(`INSERT INTO documents SELECT g, (g::bigint * 7919 %% 50000)::int, md5(g::text), repeat('some text of a body ', 3 + g %% 10),
				jsonb_build_object('number', g, 'state', CASE g %% 3 WHEN 0 THEN 'new' ELSE 'done' END, 'tags', jsonb_build_array('a', 'b', g %% 100)),
				timestamptz '2026-01-01 00:00:00+00' + g * interval '1 second' FROM generate_series(1, %d) g`, documents),
			contenders: mustParse("native,native+binary,pipe,pipe+binary,pgapply,pgapply+defer-indexes"),
		},
		{
			name: "C3", title: fmt.Sprintf("copy of %d tables with 100 rows each", small),
			schema: []string{fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP EXECUTE format('CREATE TABLE small%%s (id int PRIMARY KEY, a int, b text)', i); END LOOP; END $$`, small)},
			tables: names, copied: true,
			fill: fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP
				EXECUTE format('INSERT INTO small%%s SELECT g, g, ''some text of a row'' FROM generate_series(1, 100) g', i); END LOOP; END $$`, small),
			contenders: mustParse("native,native+binary,pgapply"),
		},
	}
}

// grouped writes a number with commas.
func grouped(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
