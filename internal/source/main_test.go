package source

import (
	"testing"

	"pgapply/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
