package catalog

// Version identifies the definition of a table, and of the index that its rows are
// searched by, at the moment it was read: the catalog rows and who wrote them. All
// members are text; "0" stands for no index.
type Version struct{ Table, TableXID, Index, IndexXID string }

// PinSQL fails with SQLSTATE 22P02 when a table is no longer what it was. Its
// parameters are the members of the table's Version, in order.
//
// It is meant to follow a statement that has locked the table in the same
// transaction: from there on the definition cannot change, and before it whatever
// changed is seen. So a transaction that went through with every table pinned was
// applied to the definitions that its statements were built for.
const PinSQL = `SELECT (CASE WHEN
	EXISTS (SELECT FROM pg_catalog.pg_class WHERE oid = $1::pg_catalog.oid AND xmin = $2::pg_catalog.xid)
	AND ($3::pg_catalog.oid = 0 OR
		EXISTS (SELECT FROM pg_catalog.pg_index WHERE indexrelid = $3::pg_catalog.oid AND xmin = $4::pg_catalog.xid AND indisvalid))
	THEN '1' ELSE 'the table was changed' END)::pg_catalog.int4`
