package apply

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply/state"
)

func TestCopyEnd(t *testing.T) {
	require.Equal(t, "copied tables", copyEnd(&state.Copy{Tables: 2, Done: 2}))
	require.Contains(t, copyEnd(&state.Copy{Tables: 2}), "ended before")
}
