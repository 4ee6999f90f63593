// Prints the time of an mlpool_alloc with its mlpool_free, in ns, for threads that each have a stream.
//
// usage: bench [PAIRS]
#include "mlpool.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static mlpool_pool *pool;
static int pairs = 2000000;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static void fail(void) {
  fprintf(stderr, "%s\n", mlpool_error());
  exit(1);
}

// work makes pairs while a few other blocks are live, as in programs. Numbers stand for streams: since no memory
// changes streams, the driver never sees them.
static void *work(void *stream) {
  void *others[8], *p;
  for (int i = 0; i < 8; i++)
    if (mlpool_alloc(pool, &others[i], 1 << 16, stream, "other")) fail();
  double from = now();
  for (int i = 0; i < pairs; i++)
    if (mlpool_alloc(pool, &p, 1 << 20, stream, NULL) || mlpool_free(pool, p, stream)) fail();
  double *took = malloc(sizeof *took);
  *took = (now() - from) / pairs;
  for (int i = 0; i < 8; i++)
    if (mlpool_free(pool, others[i], stream)) fail();
  return took;
}

int main(int count, char **args) {
  if (count > 1) pairs = atoi(args[1]);
  if (mlpool_create(0, "reuse=same-stream", &pool)) fail();
  printf("threads,ns_per_pair\n");
  for (int threads = 1; threads <= 8; threads *= 2) {
    pthread_t all[8];
    double sum = 0;
    for (int i = 0; i < threads; i++)
      if (pthread_create(&all[i], NULL, work, (void *)(size_t)(i + 1))) return 1;
    for (int i = 0; i < threads; i++) {
      void *took;
      if (pthread_join(all[i], &took)) return 1;
      sum += *(double *)took;
      free(took);
    }
    printf("%d,%.1f\n", threads, sum / threads);
  }
  return mlpool_destroy(pool) ? fail(), 1 : 0;
}
