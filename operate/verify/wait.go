package verify

import (
	"context"
	"time"

	"pgapply/internal/lsn"
)

// WaitApplied waits until the target has everything that has committed on the publisher
// by now, up to the position that it returns. behind says what keeps it from that, for
// longer than options.Patience or because nobody applies. Of the options it takes what
// tells of the publisher, and of those who follow.
func WaitApplied(ctx context.Context, options Options) (position lsn.LSN, behind string, err error) {
	first, err := open(ctx, "publisher", options.Source, options.ApplicationName, readOnly())
	if err != nil {
		return 0, "", &EndError{Err: err}
	}
	c := &comparison{options: &options}
	c.pools[sourceEnd] = newPool(1, first, func(ctx context.Context) (*session, error) {
		return open(ctx, "publisher", options.Source, options.ApplicationName, readOnly())
	})
	defer c.pools[sourceEnd].close()
	committed, err := c.now(ctx)
	if err != nil {
		return 0, "", err
	}
	behind, err = c.follow(ctx, committed, time.Now().Add(options.Patience))
	if err == nil && !c.follows() {
		behind = "no runner applies"
	}
	return committed.end, behind, err
}
