// A front has the live blocks of a pool by address, and keeps the last blocks that were freed on each stream, so
// that a request of the same size on the same stream, or of a size for which front_extend made room, needs no call to
// Go. Such a call costs a hundred nanoseconds, and the Go runtime takes a lock in it that all threads share. To the pool
// these blocks are live: it takes them back before it looks for memory elsewhere, and before it reports anything.
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

// A block with room: free memory after it, which the pool does not use. It has bytes now, and its stream may have it for
// requests of least to room bytes; most is the largest of them so far.
typedef struct {
  front_block block;  // of address 0: none
  size_t bytes, least, most, room;
} front_room;

// What left a front together: a block whose room to take back, then blocks to free. They are in hand until the pool has done
// so: if there are any, whoever does it then adds 1 to *returned and, if there is room, subtracts 1 from *rooms.
typedef struct {
  int count;
  uint32_t *returned;
  int32_t *rooms;
  front_room room;
  front_block blocks[FRONT_BLOCKS];
} front_drained;

// What front_take knows of a stream whose blocks it gives back: the stream, or NULL, and whether the last block that the
// pool handed out for it is the only one.
typedef struct {
  struct stream_blocks *stream;
  int alone;
} front_miss;

// front_new returns an empty front, or NULL if the host has no memory. It is never freed, since another
// thread may be within it; front_end frees most of what it holds. The front must be off then.
front *front_new(void);
void front_end(front *f);

// front_none stands for a front where there is none. It never gets a block.
extern front *const front_none;

// front_add notes a block that the pool handed out for work on b->stream. Only if plain is set, front_give may keep
// it. It returns 0 if the host has no memory.
int front_add(front *f, const front_block *b, size_t bytes, const char *tag, int plain);

// front_take returns a block for a request, or 0. Two tags are equal if their addresses are. If it returns 0, the
// front forgets the blocks that it keeps of the stream, and writes them to out, with the block that has room. The
// caller passes an empty out, of count and room.block.ptr 0, here and to front_give.
uintptr_t front_take(front *f, size_t bytes, uintptr_t stream, const char *tag, front_drained *out, front_miss *miss);

// front_extend notes that the pool handed out b after a miss of front_take. If the block that the pool handed out before
// was alone there, it calls extend, which gives b room and returns the bytes of both, or 0. Other threads that want blocks
// of the stream wait for that.
//
// A program that frees each block before it requests the next one thus gets blocks of many sizes without a call to Go, at
// the address where the pool would put them.
void front_extend(front *f, const front_miss *miss, const front_block *b, size_t bytes, size_t (*extend)(uintptr_t pool, const front_block *b),
                  uintptr_t pool);

// front_missing changes how many calls ask the pool for memory, or return it. While there are others, front_extend makes
// no room, which they would miss.
void front_missing(front *f, int change);

// front_rooms returns how many rooms are in hand, or being made.
int front_rooms(front *f);

// The results of front_use and front_give.
enum { FRONT_KEPT, FRONT_FREED_BEFORE, FRONT_UNKNOWN, FRONT_LIVE };

// front_use sets b->index of the live block at b->ptr and returns FRONT_LIVE, unless the program has freed it, or
// the front does not know it. If shared is set another stream uses the block, and front_give will not keep it.
int front_use(front *f, front_block *b, int shared);

// front_give keeps the block at b->ptr, which is freed on b->stream, and returns FRONT_KEPT. If there are too many
// blocks, it writes those to give back to out. A live block that it does not keep it forgets: that is the pool's to
// free, by b->index, once it took back what is written to out.
int front_give(front *f, front_block *b, front_drained *out);

// front_drain_next writes the blocks and the room of the first stream that has any from *next on to out, and reports
// whether there is one. The front forgets them. It advances *next.
int front_drain_next(front *f, int *next, front_drained *out);

// front_returned returns how many times what left the front has been taken back since, and sets *in_hand to how many
// times something is in hand. front_in_hand returns that number for the blocks of one stream.
uint32_t front_returned(front *f, uint32_t *in_hand);
uint32_t front_in_hand(front *f, uintptr_t stream);

// front_taken adds to taken, by class, how many blocks requests got so far. Each was freed and allocated without
// the pool's knowledge.
void front_taken(front *f, uint64_t *taken);

// front_off changes how many callers want the front off: while there are any, it keeps no blocks and makes no room.
void front_off(front *f, int change);

#endif
