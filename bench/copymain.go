package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"pgapply/apply"
	"pgapply/apply/state"
)

// sayWhenStreaming says that the copy is done when the engine streams, by when every
// table is ready. The returned func waits for it to end, which it does with ctx too.
func sayWhenStreaming(ctx context.Context, engine *apply.Engine) (wait func()) {
	ctx, cancel := context.WithCancel(ctx)
	said := make(chan struct{})
	go func() {
		defer close(said)
		again := time.NewTicker(5 * time.Millisecond)
		defer again.Stop()
		for engine.Status().Phase != state.Streaming {
			select {
			case <-again.C:
			case <-ctx.Done():
				return
			}
		}
		fmt.Println(saidDone)
	}()
	return func() {
		cancel()
		<-said
	}
}

// runPipe copies one table after the other with COPY TO and COPY FROM, and nothing in
// between: what a copy costs the servers at least. Then it waits until it is told to end.
func runPipe(ctx context.Context, j job) error {
	from, err := pgconn.Connect(ctx, j.Source)
	if err != nil {
		return err
	}
	defer from.Close(context.WithoutCancel(ctx)) //nolint:errcheck // everything was answered
	to, err := pgconn.Connect(ctx, j.Target)
	if err != nil {
		return err
	}
	defer to.Close(context.WithoutCancel(ctx)) //nolint:errcheck // everything was answered
	for _, table := range j.Tables {
		if err := pipeTable(ctx, from, to, table, j.Binary); err != nil {
			return fmt.Errorf("copy table %s: %w", table, err)
		}
	}
	if _, err := fmt.Println(saidDone); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func pipeTable(ctx context.Context, from, to *pgconn.PgConn, table string, binary bool) error {
	format := ""
	if binary {
		format = " (FORMAT binary)"
	}
	name := pgx.Identifier{table}.Sanitize()
	reader, writer := io.Pipe()
	var ends errgroup.Group
	ends.Go(func() error {
		_, err := from.CopyTo(ctx, writer, "COPY "+name+" TO STDOUT"+format)
		return errors.Join(err, writer.CloseWithError(err))
	})
	ends.Go(func() error {
		_, err := to.CopyFrom(ctx, reader, "COPY "+name+" FROM STDIN"+format)
		return errors.Join(err, reader.CloseWithError(err))
	})
	return ends.Wait()
}
