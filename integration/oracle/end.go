package oracle

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"pgapply/apply"
	"pgapply/internal/faultnet"
)

// end is a target and what brings the changes there.
type end struct {
	name     string // of the mode, or native
	database string
	index    int // in Script.Modes, -1 is the native subscription
	setup    *client
	holder   *client // of a lock, while there is one
	slot     string
	engine   *apply.Engine // while it runs
	cancel   context.CancelFunc
	done     chan struct{}
	err      error
	log      *lockedBuffer
	cuts     int64
}

const native = "native"

func (e *end) native() bool { return e.index < 0 }

// lockedBuffer keeps an engine's log until somebody asks.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) Sync() error { return nil }

// tail is the end of the log.
func (b *lockedBuffer) tail(lines int) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := strings.Split(strings.TrimSpace(b.text.String()), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// farAway is a round trip with which pgapply takes a target to be far away.
const farAway = 12 * time.Millisecond

// launch starts an engine.
func (p *play) launch(e *end) error {
	o := apply.DefaultOptions()
	o.Name, o.Publications, o.OnError = e.slot, p.script.publications, "stop"
	o.Source, o.Target, o.SpoolDir, o.CopyData = p.publisher.URI(p.database), p.target.URI(e.database), p.spool, false
	mode := p.script.Modes[e.index]
	mode.Change(&o)
	closeLink := func() {}
	if mode.Far {
		proxy, uri, err := faultnet.ListenURI(o.Target)
		if err != nil {
			return err
		}
		proxy.Delay(farAway / 2)
		o.Target, closeLink = uri, proxy.Close
	}
	o.Log = zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig()), e.log, zap.DebugLevel))
	engine, err := apply.New(o)
	if err != nil {
		closeLink()
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	e.engine, e.cancel, e.done = engine, cancel, done
	go func() {
		defer close(done)
		e.err = engine.Run(ctx)
		closeLink()
	}()
	return nil
}

// halt ends an engine in order.
func (p *play) halt(e *end) {
	if e.engine == nil {
		return
	}
	e.cancel()
	<-e.done
	p.result.Transactions += e.engine.Status().Transactions
	if e.err != nil {
		p.engineFailed(e, e.err)
	}
	e.engine = nil
}

// cut ends all connections that an engine has on one side.
func (p *play) cut(ctx context.Context, e *end, side place) error {
	e.cuts++
	s, database := &p.target, e.database
	if side == onPublisher {
		s, database = &p.publisher, p.database
	}
	return s.administrator.exec(ctx, fmt.Sprintf(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = '%s' AND starts_with(application_name, '%s')`, database, e.slot))
}

// look asks how an engine is. One that has stopped has an error that needs a person;
// one that goes on trying has one that does not pass.
func (p *play) look(e *end) {
	if e.engine == nil {
		return
	}
	select {
	case <-e.done:
		err := e.err
		if err == nil {
			err = errors.New("the engine has ended")
		}
		p.engineFailed(e, err)
	default:
		if status := e.engine.Status(); status.Retries >= p.tries()+e.cuts && status.LastError != "" {
			p.engineFailed(e, errors.New(status.LastError))
		}
	}
}

// tries are how often an engine may try again before that counts as a failure. Beside a
// copy it may have to wait for locks of the workload.
func (p *play) tries() int64 {
	if p.script.copies {
		return 12
	}
	return 3
}

// engineFailed takes an engine's error for the script's failure, unless there is one.
func (p *play) engineFailed(e *end, err error) {
	p.fail("engine "+e.name+": "+sign(err.Error()), "engine %s: %v\n%s", e.name, err, e.log.tail(25))
}

// sign leaves of a message what does not differ from play to play: words without
// digits, outside of quotes.
func sign(message string) string {
	var kept []string
	for i, part := range strings.Split(message, `"`) {
		if i%2 == 1 {
			continue
		}
		for _, word := range strings.Fields(part) {
			if !strings.ContainsAny(word, "0123456789") {
				kept = append(kept, word)
			}
		}
	}
	return strings.Join(kept, " ")
}

// late describes an end that has not come to where it should be.
func (p *play) late(ctx context.Context, e *end) (string, error) {
	var text strings.Builder
	if e.engine != nil {
		status, err := json.Marshal(e.engine.Status())
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&text, "%s\n%s\n", status, e.log.tail(25))
	}
	slots, err := p.publisher.administrator.query(ctx, fmt.Sprintf(`SELECT slot_name, active, restart_lsn, confirmed_flush_lsn, pg_current_wal_flush_lsn()
		FROM pg_replication_slots WHERE database = '%s'`, p.database))
	if err != nil {
		return "", err
	}
	fmt.Fprintf(&text, "slots %v\n", slots)
	for _, side := range []struct {
		*server
		database string
	}{{&p.publisher, p.database}, {&p.target, e.database}} {
		blocked, err := side.administrator.query(ctx, fmt.Sprintf(`SELECT application_name, query, pg_blocking_pids(pid) FROM pg_stat_activity
			WHERE datname = '%s' AND cardinality(pg_blocking_pids(pid)) > 0`, side.database))
		if err != nil {
			return "", err
		}
		for _, row := range blocked {
			fmt.Fprintf(&text, "waits for a lock in %s: %s\n", side.database, strings.Join(row, " | "))
		}
	}
	return text.String(), nil
}
