package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"
)

// renewIdentity gives the copy of a template a system identifier of its own.
// initdb chose the template's, and copies that share it would pass for one
// system, which a replica must refuse to replicate to itself.
//
// The identifier stands in two places: at the start of global/pg_control, whose
// checksum follows its last field (ControlFileData, src/include/catalog/pg_control.h),
// and in the header of the first page of each WAL segment (XLogLongPageHeaderData,
// src/include/access/xlog_internal.h). Both are in the machine's byte order.
func renewIdentity(data string) error {
	path := filepath.Join(data, "global", "pg_control")
	control, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read a control file: %w", err)
	}
	checksum, err := controlChecksumOffset(control)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	order := binary.NativeEndian
	old := order.Uint64(control)
	// As BootStrapXLOG does: seconds above, noise below.
	renewed := uint64(time.Now().Unix())<<32 | uint64(rand.Uint32())

	segments, err := filepath.Glob(filepath.Join(data, "pg_wal", "[0-9A-F]*[0-9A-F]"))
	if err != nil || len(segments) == 0 {
		return errors.Join(fmt.Errorf("no WAL segment below %s", data), err)
	}
	for _, segment := range segments {
		if err := renewSegment(segment, old, renewed); err != nil {
			return fmt.Errorf("renew the identifier of %s: %w", segment, err)
		}
	}
	order.PutUint64(control, renewed)
	order.PutUint32(control[checksum:], crc32.Checksum(control[:checksum], crc32.MakeTable(crc32.Castagnoli)))
	if err := os.WriteFile(path, control, 0o600); err != nil {
		return fmt.Errorf("write a control file: %w", err)
	}
	return nil
}

// controlChecksumOffset finds the checksum, whose place differs between majors,
// as the only four bytes that are the checksum of everything before them.
func controlChecksumOffset(control []byte) (int, error) {
	// The server keeps the struct within one disk sector.
	table := crc32.MakeTable(crc32.Castagnoli)
	for offset := 8; offset+4 <= min(len(control), 512); offset += 4 {
		if crc32.Checksum(control[:offset], table) == binary.NativeEndian.Uint32(control[offset:]) {
			return offset, nil
		}
	}
	return 0, errors.New("no checksum found in the control file")
}

func renewSegment(path string, old, renewed uint64) error {
	const offset = 24 // of xlp_sysid, behind the short page header
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	var field [8]byte
	if _, err := file.ReadAt(field[:], offset); err != nil {
		return err
	}
	if found := binary.NativeEndian.Uint64(field[:]); found != old {
		return fmt.Errorf("page header holds %d where the control file holds %d", found, old)
	}
	binary.NativeEndian.PutUint64(field[:], renewed)
	_, err = file.WriteAt(field[:], offset)
	return err
}
