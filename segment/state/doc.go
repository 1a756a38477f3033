// Package state keeps the small keyed facts that must survive, and the recovery point, in two bbolt files that are
// written in turn.
//
// What it promises:
//
//   - A checkpoint is all or nothing in what it means: the recovery point is written last, in one transaction, and what
//     is written before it are absolute values, which replaying the journal from the older point writes again.
//   - One bad file loses nothing: the other one has the checkpoint before, and the journal is kept from OldestLSN on. It
//     is the lesser of what the two files really say, so a file that bbolt opens at an earlier transaction, because its
//     newest meta page is bad, only makes the journal longer.
//   - A file is looked through before bbolt maps it, and each value ends in a checksum, so a bad file is found when it
//     is opened. It is set aside under another name and written anew.
//   - A file in which a write or a sync failed is not written again: the next checkpoint makes it anew from the good one,
//     beside it, and renames.
//
// Only a newer format, a lock held by another process and a directory that can't be used keep Open from succeeding.
package state
