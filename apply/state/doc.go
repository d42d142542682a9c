// Package state is what pgapply remembers on the target: the schema pgapply,
// its versions, and the status that engine, `status` and HTTP server share.
//
//	version             one row: the layout of everything below
//	subscription        who feeds us, the slot and how far its creation got, the acknowledged position
//	subscription_table  the tables and their states, with the letters of native's srsubstate
//	origin              every replication origin ever made for a subscription
//	progress            a row from each transaction on the target: how far it is applied
//	conflict            conflicts and skipped rows with all their values
//	message             logical messages, where they are asked for
//	runner              the process that runs it, its heartbeat and its Status as JSON
//
// Everything goes over one control session ([ConnectControl]), which also holds
// the advisory lock that makes a process the runner of its subscription: when
// the session dies, lock and power to write die with it.
//
// The package does not apply anything, does not create or drop replication
// origins (package origin does), and does not decide what a recorded state
// means for a start (the engine does). How far a subscription is applied is written by
// the sessions that apply, into table progress, together with the rows.
package state
