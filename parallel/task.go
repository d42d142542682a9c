package parallel

// Task applies one running transaction on the connection of one worker. Advance,
// Abandon and what is given to [Running.Finish] are called on the worker's
// goroutine, one at a time.
type Task interface {
	// Advance applies what has arrived and may run while that many transactions are
	// committed on the target. It returns when nothing is left for now, and is called
	// again when more has arrived or committed. It may wait for the target, but not for
	// the publisher and not for other transactions of the pool. After an error follows
	// Abandon.
	Advance(committed uint64) error

	// Abandon rolls back all that was applied and leaves the connection fit for the
	// next task. It is the last call, and there is none after a Finish that committed.
	// An error means that the connection is lost, and stops the pool: see [Pool.Failed].
	Abandon() error

	// Cancel frees an Advance, or what Finish runs, that waits for the target: it makes
	// the call return soon, by whatever error. It is called on another goroutine, may
	// take the time of a message to the target, and must return even if nobody answers.
	//
	// It may come too early to meet a statement, so it is called again every second
	// until the call has returned; and too late, when the call is returning. It is
	// never on its way while Abandon runs or the connection serves another task. What
	// it has set off may be, if the target acts on it with a delay: Abandon has to
	// stand that. A later task that is hit fails as by any other error.
	Cancel()
}
