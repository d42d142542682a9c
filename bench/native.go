package main

import (
	"context"
	"fmt"
	"time"

	"pgapply/internal/cluster"
)

// subscription runs the native contender.
type subscription struct{ *drain }

func (s *subscription) prepare(ctx context.Context) error {
	settings := fmt.Sprintf(`create_slot = false, slot_name = '%s', enabled = false, copy_data = false, binary = %t`, s.slot, s.contender.binary)
	if s.contender.streaming != "" {
		settings += `, streaming = ` + s.contender.streaming
	}
	return execute(ctx, s.target.URI(drainDatabase), fmt.Sprintf(
		`CREATE SUBSCRIPTION bench CONNECTION 'host=%s port=%d user=postgres dbname=%s' PUBLICATION p WITH (%s)`,
		cluster.Host, s.publisher.Port(), sourceDatabase, settings))
}

func (s *subscription) start(ctx context.Context) (done, ended <-chan struct{}, err error) {
	return nil, nil, execute(ctx, s.target.URI(drainDatabase), `ALTER SUBSCRIPTION bench ENABLE`)
}

// peak: what its processes hold besides shared memory is not to be had.
func (s *subscription) peak() (int64, error) { return 0, nil }

func (s *subscription) stop(ctx context.Context) (time.Duration, error) {
	return 0, execute(ctx, s.target.URI(drainDatabase),
		`ALTER SUBSCRIPTION bench DISABLE`, `ALTER SUBSCRIPTION bench SET (slot_name = NONE)`, `DROP SUBSCRIPTION bench`)
}
