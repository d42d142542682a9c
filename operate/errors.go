package operate

import (
	"fmt"

	"pgapply/apply"
)

func refused(hint, format string, arguments ...any) *apply.Error {
	return &apply.Error{Class: apply.Refused, Err: fmt.Errorf(format, arguments...), Hint: hint}
}

func targetErrorOrNil(err error) error {
	if err == nil {
		return nil
	}
	return apply.TargetError(err)
}
