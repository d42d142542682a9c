package catalog

// Version identifies the definition of a table, of its columns, and of the index that
// its rows are searched by, at the moment it was read: the catalog rows and who wrote
// them. All members are text; "0" stands for no index. Batches is what [PinBatchesSQL]
// compares; it is empty where that takes [PinUnnoticedSQL].
type Version struct{ Table, TableXID, Columns, Index, IndexXID, Batches string }

// columnsVersion is a hash of what of its columns matters for statements. Changes of
// names and types need not show in a table's own catalog row, and prepared statements
// survive them with the old types of their parameters.
const columnsVersion = `(SELECT pg_catalog.hashtextextended(pg_catalog.string_agg(pg_catalog.concat_ws(' ',
	a.attnum, a.attname, a.atttypid, a.atttypmod, a.attcollation, a.attgenerated, a.attidentity), ',' ORDER BY a.attnum), 0)
	FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)`

// PinSQL fails with SQLSTATE 22P02 when a table is no longer what it was. Its
// parameters are the members of the table's Version but Batches, in order.
//
// It is meant to follow a statement that has locked the table in the same
// transaction: from there on the definition cannot change, and before it whatever
// changed is seen. So a transaction that went through with every table pinned was
// applied to the definitions that its statements were built for.
const PinSQL = `SELECT (CASE WHEN
	EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = $1::pg_catalog.oid AND c.xmin = $2::pg_catalog.xid
		AND ` + columnsVersion + ` IS NOT DISTINCT FROM nullif($3, '')::pg_catalog.int8)
	AND ($4::pg_catalog.oid = 0 OR
		EXISTS (SELECT FROM pg_catalog.pg_index WHERE indexrelid = $4::pg_catalog.oid AND xmin = $5::pg_catalog.xid AND indisvalid))
	THEN '1' ELSE 'the table was changed' END)::pg_catalog.int4`
