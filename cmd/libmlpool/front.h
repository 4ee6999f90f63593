// A front has the live blocks of a pool by address, and keeps the last blocks that were freed on each stream, so
// that a request of the same size on the same stream gets one without a call to Go. Such a call costs a hundred
// nanoseconds, and the Go runtime takes a lock in it that all threads share. To the pool these blocks are live: it
// takes them back before it looks for memory elsewhere, and before it reports anything.
#ifndef MLPOOL_FRONT_H
#define MLPOOL_FRONT_H

#include <stddef.h>
#include <stdint.h>

enum {
  FRONT_BLOCKS = 64,   // that a front keeps of one stream
  FRONT_CLASSES = 48,  // of sizes: class c has those of more than 128 << c bytes, and at most 256 << c
};

typedef struct front front;

// A block by its address and by its index in the pool's table, where each block has a number of its own. It was, or is to
// be, freed on stream.
typedef struct {
  uintptr_t ptr, stream;
  uint32_t index, number;
} front_block;

// A block with room: free memory after it, which the pool does not use. The block has size bytes now, and requests for
// least to room bytes may have it; most is the largest of them so far. In units of 256 bytes.
typedef struct {
  front_block block;  // of address 0: none
  size_t size, least, most, room;
} front_room;

// What left a front together: blocks to free, and before that a block whose room to take back. They are in hand until the
// pool has done so: if there are any, whoever does it then adds 1 to *returned.
typedef struct {
  int count;
  uint32_t *returned;
  front_room room;
  struct stream_blocks *of;  // of front_take: the stream's, or NULL
  int alone;                 // of front_take: there is one block, the last that the pool handed out
  front_block blocks[FRONT_BLOCKS];
} front_drained;

// front_new returns an empty front, or NULL if the host has no memory. It is never freed, since another
// thread may be within it; front_end frees most of what it holds. The front must be off then.
front *front_new(void);
void front_end(front *f);

// front_add notes a block that the pool handed out for work on b->stream. Only if plain is set, front_give may keep
// it. It returns 0 if the host has no memory.
int front_add(front *f, const front_block *b, size_t bytes, const char *tag, int plain);

// front_take returns a block for a request, or 0. Two tags are equal if their addresses are. If it returns 0, the
// front forgets the blocks that it keeps of the stream, and writes them to out, with the block that has room.
uintptr_t front_take(front *f, size_t bytes, uintptr_t stream, const char *tag, front_drained *out);

// front_handed_out notes that the pool handed out b after front_take wrote to out. room is the bytes of b and of the room
// after it, or 0. If another block of the stream has room, it writes b to out.
//
// A program that frees each block before it requests the next one thus gets blocks of many sizes without a call to Go, at
// the address where the pool would put them.
void front_handed_out(front *f, const front_block *b, size_t bytes, size_t room, front_drained *out);

// The results of front_use and front_give.
enum { FRONT_KEPT, FRONT_FREED_BEFORE, FRONT_UNKNOWN, FRONT_LIVE };

// front_use sets b->index of the live block at b->ptr and returns FRONT_LIVE, unless the program has freed it, or
// the front does not know it. If shared is set another stream uses the block, and front_give will not keep it. The block
// of its stream that has room is written to out.
int front_use(front *f, front_block *b, int shared, front_drained *out);

// front_give keeps the block at b->ptr, which is freed on b->stream, and returns FRONT_KEPT. If there are too many
// blocks, it writes those to give back to out. A live block that it does not keep it forgets: that is the pool's to
// free, by b->index, after the room of the block that is written to out.
int front_give(front *f, front_block *b, front_drained *out);

// front_drain_next writes the blocks of the first stream that has any from *next on to out, and reports whether there
// is one. The front forgets them. It advances *next.
int front_drain_next(front *f, int *next, front_drained *out);

// front_returned returns how many times blocks that left the front have been freed since, and sets *in_hand to how many
// times blocks are in hand. front_in_hand returns that number for the blocks of one stream.
uint32_t front_returned(front *f, uint32_t *in_hand);
uint32_t front_in_hand(front *f, uintptr_t stream);

// front_taken adds to taken, by class, how many blocks requests got so far. Each was freed and allocated without
// the pool's knowledge.
void front_taken(front *f, uint64_t *taken);

// front_off stops the front from keeping blocks, until front_on was called as often.
void front_off(front *f);
void front_on(front *f);

#endif
