package parallel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestScripts plays testdata/scripts/*.txt. Time is virtual, and after every command all
// goroutines run until they wait, so the order of things is the script's.
//
//	pool workers=N            a new pool; the one before it is closed
//	start NAME [deaf] [slow]  Start with a task that logs its calls; each lasts until "return" or Cancel.
//	                          Cancel does not free the calls of a deaf task, and that of a slow one lasts until "canceled".
//	begins NAME               the next start's begin lasts until "begun NAME"
//	return NAME [err=TEXT]    the call returns
//	canceled NAME             the slow Cancel returns
//	arrived, drop NAME
//	finish NAME               Finish in the background; its answer is logged
//	stop NAME                 ends the context of Finish
//	committed N, yield WORKER
//	pass DURATION             time passes
//	close                     Close in the background; its return is logged
//	err, workers              what the pool tells
//
// What a command has led to is listed by name.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) {
			s := &script{log: map[string][]string{}}
			defer s.end()
			datadriven.RunTest(t, path, s.run)
		})
	})
}

type script struct {
	pool    *Pool
	opened  time.Time
	tasks   map[string]*scripted
	begins  map[string]chan struct{} // whose begin waits
	current sync.WaitGroup           // what runs in the background

	mu  sync.Mutex
	log map[string][]string
}

// scripted is a task that does as the script says.
type scripted struct {
	script  *script
	name    string
	running *Running
	deaf    bool
	slow    chan struct{} // unless nil, Cancel receives from it

	ctx     context.Context // of Finish
	stop    context.CancelCauseFunc
	replies chan error
	cancel  chan struct{}
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	if err := s.command(d); err != nil {
		d.Fatalf(t, "%v", err)
	}
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s.log)) {
		for _, line := range s.log[name] {
			fmt.Fprintf(&out, "%s: %s\n", name, line)
		}
	}
	clear(s.log)
	return out.String()
}

func (s *script) command(d *datadriven.TestData) error {
	var name string
	if len(d.CmdArgs) > 0 {
		name = d.CmdArgs[0].Key
	}
	task := s.tasks[name]
	switch d.Cmd {
	case "pool":
		s.end()
		var workers int
		if _, err := fmt.Sscan(d.CmdArgs[0].Vals[0], &workers); err != nil {
			return err
		}
		s.pool, s.opened = New(workers), time.Now()
		s.tasks, s.begins = map[string]*scripted{}, map[string]chan struct{}{}
	case "begins":
		s.begins[name] = make(chan struct{})
	case "begun":
		close(s.begins[name])
	case "start":
		s.start(name, d.HasArg("deaf"), d.HasArg("slow"))
	case "return":
		var err error
		if text, ok := d.Arg("err"); ok {
			err = errors.New(text.Vals[0])
		}
		select {
		case task.replies <- err:
		default:
			return fmt.Errorf("%s is in no call", name)
		}
	case "canceled":
		task.slow <- struct{}{}
	case "arrived":
		task.running.Arrived()
	case "drop":
		task.running.Drop()
	case "finish":
		s.current.Go(func() {
			done, err := task.running.Finish(task.ctx, func(given Task) error {
				if given != Task(task) {
					s.note(name, "is ended with another's task")
				}
				return task.call("ends")
			})
			s.note(name, fmt.Sprintf("finish: %v, %v", done, err))
		})
	case "stop":
		task.stop(errors.New("stopped by the caller"))
	case "committed":
		var n uint64
		if _, err := fmt.Sscan(name, &n); err != nil {
			return err
		}
		s.pool.Committed(n)
	case "yield":
		var worker int
		if _, err := fmt.Sscan(name, &worker); err != nil {
			return err
		}
		s.pool.Yield(worker)
	case "pass":
		duration, err := time.ParseDuration(name)
		if err != nil {
			return err
		}
		elapse(duration)
	case "close":
		pool := s.pool
		s.current.Go(func() {
			pool.Close()
			s.note("pool", "closed")
		})
	case "err":
		select {
		case <-s.pool.Failed():
			s.note("pool", fmt.Sprintf("failed: %v", s.pool.Err()))
		default:
			s.note("pool", fmt.Sprintf("not failed: %v", s.pool.Err()))
		}
	case "workers":
		for _, w := range s.pool.Workers() {
			line := fmt.Sprintf("%s since %s", w.State, w.Since.Sub(s.opened))
			if task, ok := w.Task.(*scripted); ok {
				line += fmt.Sprintf(", %d (%s)", w.Label, task.name)
			} else if w.State != Idle {
				line += fmt.Sprintf(", %d (not begun)", w.Label)
			}
			s.note(fmt.Sprintf("worker %d", w.Worker), line)
		}
	default:
		return fmt.Errorf("unknown command %s", d.Cmd)
	}
	return nil
}

func (s *script) start(name string, deaf, slow bool) {
	task := &scripted{script: s, name: name, deaf: deaf, replies: make(chan error), cancel: make(chan struct{}, 100)}
	if slow {
		task.slow = make(chan struct{})
	}
	task.ctx, task.stop = context.WithCancelCause(context.Background())
	begins := s.begins[name]
	s.tasks[name] = task
	task.running = s.pool.Start(uint32(100+len(s.tasks)), func(worker int) Task {
		s.note(name, fmt.Sprintf("begins on worker %d", worker))
		if begins != nil {
			<-begins
		}
		return task
	})
}

// end closes the pool, whatever is in its way.
func (s *script) end() {
	if s.pool == nil {
		return
	}
	for _, task := range s.tasks {
		close(task.replies)
		if task.slow != nil {
			close(task.slow)
		}
	}
	s.pool.Close()
	s.current.Wait()
	s.pool = nil
	clear(s.log)
}

func (s *script) note(name, line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log[name] = append(s.log[name], line)
}

// call lasts until the script or Cancel ends it.
func (s *scripted) call(what string) error {
	s.script.note(s.name, what)
	for len(s.cancel) > 0 {
		<-s.cancel
	}
	select {
	case err := <-s.replies:
		return err
	case <-s.cancel:
		return errors.New("canceled")
	}
}

func (s *scripted) Advance(committed uint64) error {
	return s.call(fmt.Sprintf("advances at %d", committed))
}

func (s *scripted) Abandon() error { return s.call("abandons") }

func (s *scripted) Cancel() {
	s.script.note(s.name, "is canceled")
	if !s.deaf {
		s.cancel <- struct{}{}
	}
	if s.slow != nil {
		<-s.slow
	}
}
