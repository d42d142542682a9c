package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"pgapply/internal/lsn"
	"pgapply/internal/source"
)

// A slot is made once all transactions have ended that wrote when its making began, and
// those that began to write until then. That may take hours, so somebody looks on and
// says whom it waits for:
//
//	publisher   CREATE_REPLICATION_SLOT ───────── waits ─────────► made
//	beside it        look ── look ── look ── ...
//
// A standby does not know by itself which transactions run: it waits for its primary to
// write that into the log, which this does every 15 s while it has anything to write at
// all, or when it is told to. Where the primary may be asked, the looking on goes there.

const (
	// slotPause comes before the first look: most slots are made by then.
	slotPause = 500 * time.Millisecond
	// longestSlotPause is up to what the pauses grow.
	longestSlotPause = time.Second
	// recordPause is slotPause where the primary has to be told.
	recordPause = 50 * time.Millisecond
)

// mostNamed transactions are named.
const mostNamed = 5

// slotWatch looks on while a slot is made.
type slotWatch struct {
	attempt *attempt
	slot    string
	// maker is the publisher's process that makes it, since began.
	maker uint32
	began time.Time
	// tell gets what it waits for in words.
	tell func(string)
	// conn leads to the publisher, or to its primary, and is nil while there is none.
	conn *source.Conn
	// said is what was logged last.
	said string
}

// watched does something that has to do with the making of a slot, by a session of the
// publisher's, and tells meanwhile what it waits for.
func (a *attempt) watched(ctx context.Context, slot string, maker *source.Conn, tell func(string), do func() error) error {
	w := &slotWatch{attempt: a, slot: slot, maker: maker.PID(), began: time.Now(), tell: tell}
	defer func() {
		if w.conn != nil {
			_ = w.conn.Close() // it is of no further use either way
		}
	}()
	if a.identity.InRecovery && a.options.Primary != "" {
		// Before the slot is made: where this fails, the making might never end.
		var err error
		if w.conn, err = w.connect(ctx); err != nil {
			return err
		}
	}
	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { w.run(watching) })
	err := do()
	stop()
	watch.Wait()
	return err
}

// connect opens the session that looks on.
func (w *slotWatch) connect(ctx context.Context) (*source.Conn, error) {
	a := w.attempt
	if a.identity.InRecovery {
		return OpenPrimary(ctx, a.options, a.identity, a.log)
	}
	return a.dial(ctx, a.options.Name+":look")
}

func (w *slotWatch) run(ctx context.Context) {
	a := w.attempt
	if a.identity.InRecovery && a.options.Primary == "" {
		w.say("standby", fmt.Sprintf("replication slot %q on a standby is made once its primary has recorded which transactions run, "+
			"which takes up to 15 s, and for ever where nothing is written there, and once those have ended that wrote then", w.slot),
			"SELECT pg_log_standby_snapshot() on the primary, or start with --primary, which does so and names the transactions")
		return
	}
	pause := slotPause
	if a.identity.InRecovery {
		pause = recordPause
	}
	for ; sleep(ctx, pause); pause = min(2*pause, longestSlotPause) {
		err := w.look(ctx)
		if err == nil || ctx.Err() != nil {
			continue
		}
		if w.conn != nil {
			_ = w.conn.Close() // it is of no further use either way
			w.conn = nil
		}
		trouble := sourceErrorOrRefused(err)
		if said := trouble.Error(); said != w.said {
			a.log.Warn("cannot tell what the making of the slot waits for: "+said, zap.String("slot", w.slot), zap.String("hint", HintOf(trouble)))
			w.said = said
		}
	}
}

// look tells whom the making waits for now.
func (w *slotWatch) look(ctx context.Context) (err error) {
	if w.conn == nil {
		if w.conn, err = w.connect(ctx); err != nil {
			return err
		}
	}
	standby := w.attempt.identity.InRecovery
	where, maker := "publisher", w.maker
	var recorded lsn.LSN
	if standby {
		where, maker = "primary", 0
		if recorded, err = w.conn.LogSnapshot(ctx); err != nil {
			return err
		}
	}
	waited := time.Since(w.began)
	writing, err := w.conn.Transactions(ctx, maker)
	if err != nil {
		return err
	}
	// A younger one may be waited for too; then it is known to block.
	before := slices.DeleteFunc(writing, func(t source.Transaction) bool {
		return !t.Blocks && t.Age < waited && (t.Age >= 0 || !standby)
	})
	switch {
	case len(before) > 0:
		w.name(before, where)
	case standby:
		w.tell(fmt.Sprintf("replication slot %q is made once the standby has replayed its primary's log up to %s", w.slot, recorded))
	}
	return nil
}

// name names the transactions.
func (w *slotWatch) name(transactions []source.Transaction, where string) {
	var who, names, remedies []string
	running, prepared := false, false
	for i, t := range transactions {
		running, prepared = running || t.PID != 0, prepared || t.PID == 0
		who = append(who, fmt.Sprint(t.PID, t.GID))
		if i < mostNamed {
			names = append(names, t.String())
		}
	}
	if more := len(transactions) - mostNamed; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	if running {
		remedies = append(remedies, "SELECT pg_terminate_backend(PID)")
	}
	if prepared {
		remedies = append(remedies, "COMMIT PREPARED or ROLLBACK PREPARED in its database")
	}
	w.say(strings.Join(who, " "), fmt.Sprintf("replication slot %q is made once what writes on the %s has ended: %s", w.slot, where, strings.Join(names, ", ")),
		"wait, or end it there: "+strings.Join(remedies, ", "))
}

// say tells what it waits for, and logs it unless the key says that it was logged last.
func (w *slotWatch) say(key, text, remedy string) {
	w.tell(text + "; " + remedy)
	if key != w.said {
		w.attempt.log.Warn("waiting: "+text, zap.String("hint", remedy))
		w.said = key
	}
}
