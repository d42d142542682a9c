// Package cluster runs real PostgreSQL servers that live no longer than the
// process that asked for them: for tests, benchmarks and the demo.
//
//	Find     directory given | installed | fetched with npm | newest installed
//	           |
//	cache    servers/<release>/{bin,lib,share}    each fetched once
//	           |
//	         templates/<version>                  one initdb for each server
//	           |  copied, with a system identifier of its own
//	Start    <temporary directory>/{data,log,.s.PGSQL.<port>}
//	           |
//	guard    a shell which ends the server and removes the directory when this
//	         process dies without having done so, even of kill -9
//
// PostgreSQL refuses to run as root. A root process therefore runs servers as
// an unprivileged account, and only uses directories which that account can
// reach.
//
// A cluster trusts every connection from this machine and does not survive a
// power failure unless Options.Durable is set: it is nothing for data that
// anybody wants to keep. The package runs no SQL. It needs Linux's /proc.
package cluster
