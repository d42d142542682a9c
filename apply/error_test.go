package apply

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever an error is about, its text is one that the target can store: a broken stream
// has any bytes where names should be.
func TestErrorsCanBeStored(t *testing.T) {
	err := &Error{Err: errors.New("message \x00 of table \xff\xfe")}
	require.Equal(t, "message ? of table ?", err.Error())
}
