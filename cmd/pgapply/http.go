package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"pgapply/apply"
	"pgapply/internal/httpd"
	"pgapply/operate"
	"pgapply/operate/monitor"
)

// httpOptions say what `run` shows over HTTP, and to whom.
type httpOptions struct {
	address   string // empty for none
	tokenFile string
	readyLag  time.Duration
}

// tokenVariable holds the token itself, which no flag may: everyone on the machine sees
// those.
const tokenVariable = "PGAPPLY_HTTP_TOKEN"

func (o *httpOptions) flags(flags *pflag.FlagSet) {
	flags.StringVar(&o.address, "http", "", "serve /metrics, /healthz, /readyz, /status and a page on this `ADDRESS`; :PORT is that of the loopback address only")
	flags.StringVar(&o.tokenFile, "http-token-file", "", "`FILE` with a token that all but /healthz and /readyz ask for, as does variable "+tokenVariable)
	flags.DurationVar(&o.readyLag, "ready-lag", time.Minute, "longest `TIME` behind the publisher at which /readyz says ready; 0 for any")
}

// validate reports what is wrong with the options, as far as that shows without
// listening.
func (o *httpOptions) validate() error {
	var faults []error
	if o.readyLag < 0 {
		faults = append(faults, fmt.Errorf("--ready-lag must not be negative; 0 is for any lag"))
	}
	if o.address == "" && o.tokenFile != "" {
		faults = append(faults, errors.New("--http-token-file is of no use without --http"))
	}
	return errors.Join(faults...)
}

// token is empty where none is wanted.
func (o *httpOptions) token() (string, error) {
	token, where := os.Getenv(tokenVariable), tokenVariable
	if o.tokenFile != "" {
		if token != "" {
			return "", fmt.Errorf("both --http-token-file and %s give a token: set one of them", tokenVariable)
		}
		text, err := os.ReadFile(o.tokenFile)
		if err != nil {
			return "", fmt.Errorf("read --http-token-file: %w", err)
		}
		token, where = string(bytes.TrimSpace(text)), "--http-token-file"
	} else if token == "" {
		return "", nil
	}
	if err := httpd.CheckToken(token); err != nil {
		return "", fmt.Errorf("%s: %w", where, err)
	}
	return token, nil
}

// listen makes the server. Whatever keeps it from listening is for whoever wrote the
// command line to mend.
func (o *httpOptions) listen(log *zap.Logger, source httpd.Source) (*httpd.Server, error) {
	token, err := o.token()
	if err != nil {
		return nil, &apply.Error{Class: apply.Configuration, Err: err}
	}
	server, err := httpd.New(httpd.Options{Address: o.address, Token: token, Log: zap.NewStdLog(log)}, source)
	if err != nil {
		failed := &apply.Error{Class: apply.Configuration, Err: fmt.Errorf("--http: %w", err)}
		if errors.Is(err, syscall.EADDRINUSE) {
			failed.Hint = "another process has the port, such as a runner that is still stopping: `ss -ltnp` lists who listens where"
		}
		return nil, failed
	}
	log.Info("serving HTTP on http://"+server.Address()+"/", zap.Bool("token", token != ""))
	if server.Open() {
		log.Warn("whoever reaches this address sees names of tables, positions and errors, but no values of rows: set --http-token-file or " + tokenVariable)
	}
	return server, nil
}

// runWatched runs an engine, with HTTP beside it until the engine has stopped.
func runWatched(ctx context.Context, options apply.Options, http httpOptions) error {
	options.ReadRecords = true
	engine, err := newEngine(options)
	if err != nil {
		return err
	}
	ends := operate.Endpoints{Name: options.Name, Source: options.Source, SourcePassfile: options.SourcePassfile}
	watching := monitor.New(engine, monitor.Options{
		Name: options.Name, Version: version, Commit: commit, ReadyLag: http.readyLag,
		AskPublisher: func(ctx context.Context) *operate.PublisherView {
			return operate.ReadPublisher(ctx, ends, options.SlotName())
		},
	})
	server, err := http.listen(options.Log, watching)
	if err != nil {
		return err
	}
	beside, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	tasks.Go(func() { watching.Run(beside) })
	tasks.Go(func() {
		if err := server.Run(beside); err != nil {
			options.Log.Error("HTTP has ended; the replication goes on", zap.Error(err))
		}
	})
	return runAsService(ctx, options.Log, engine)
}
