// Package verify compares the rows of tables on two servers while both work, and tells
// exactly which differ.
//
//	scan     each end adds up hashes of its rows, by chunks of keys ──► chunks that differ
//	look     the rows of those chunks, key by key                   ──► candidates
//	settle   again, after the target has what the publisher had     ──► differences
//	repair   what the publisher has, under a lock, onto the target
//
// A chunk is what the hash of a row's key says, not a range of keys: no order has to be
// the same on both ends, so that collations, partitions and indexes may differ. Sums do
// not depend on the order either. So each end reads its table as it lies on disk, in
// slices of blocks, each a short statement of its own, and no row is sorted or sent.
//
// Rows that change meanwhile make chunks differ that do not. None of that matters, since
// a candidate is looked at until it is proved: the target has applied what the publisher
// had committed when the row was read there, and it still is another one.
//
// Hashes are of the text of values, which is the same in all majors under the settings
// of session.go, but for what value.go names. They have 64 bits: two rows with the same
// hash that differ are not told apart.
//
// The package reads, and only repair writes. It does not know what a subscription is.
package verify
