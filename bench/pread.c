/* The limit of reading: plain threads that pread the pieces of samples, and nothing else.

   A sample is `pieces` runs of `nbytes` each, from files[file_of[sample]] at offsets[sample * pieces + piece]; they go one
   after another into out[(k % slots) * pieces * nbytes] for the k-th sample of `order`. With `direct` the file is read with
   O_DIRECT in whole pages into a buffer of each thread, and copied to `out`. With more than one file each sample opens its own.
   Returns 0 or the errno of the first failure. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

struct job {
  const char *const *files;
  int64_t file_count;
  const int64_t *offsets;
  int64_t pieces, nbytes;
  const int64_t *order;
  int64_t count;
  char *out;
  int64_t slots;
  int direct;
  int shared_file;
  atomic_llong next;
  atomic_int error;
};

static int read_all(int file, char *to, int64_t nbytes, int64_t offset, int64_t least) {
  int64_t done = 0;
  while (done < least) {
    ssize_t n = pread(file, to + done, (size_t)(nbytes - done), offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return EIO;
    done += n;
  }
  return 0;
}

static int read_sample(struct job *job, int file, int64_t sample, char *to, char *pages) {
  for (int64_t piece = 0; piece < job->pieces; piece++, to += job->nbytes) {
    int64_t offset = job->offsets[sample * job->pieces + piece];
    int error;
    if (job->direct) {
      int64_t before = offset % PAGE;
      int64_t whole = (before + job->nbytes + PAGE - 1) / PAGE * PAGE;
      error = read_all(file, pages, whole, offset - before, before + job->nbytes);
      memcpy(to, pages + before, (size_t)job->nbytes);
    } else {
      error = read_all(file, to, job->nbytes, offset, job->nbytes);
    }
    if (error) return error;
  }
  return 0;
}

static void *work(void *argument) {
  struct job *job = argument;
  int64_t room = (job->nbytes + 2 * PAGE) / PAGE * PAGE;
  char *pages = job->direct ? aligned_alloc(PAGE, (size_t)room) : NULL;
  int flags = O_RDONLY | O_CLOEXEC | (job->direct ? O_DIRECT : 0);
  for (;;) {
    int64_t k = atomic_fetch_add(&job->next, 1);
    if (k >= job->count || atomic_load(&job->error)) break;
    int64_t sample = job->order[k];
    int file = job->shared_file >= 0 ? job->shared_file : open(job->files[sample], flags);
    int error = file < 0 ? errno
                         : read_sample(job, file, sample, job->out + k % job->slots * job->pieces * job->nbytes, pages);
    if (job->shared_file < 0 && file >= 0) close(file);
    if (error) atomic_store(&job->error, error);
  }
  free(pages);
  return NULL;
}

int read_samples(const char *const *files, int64_t file_count, const int64_t *offsets, int64_t pieces, int64_t nbytes,
                 const int64_t *order, int64_t count, char *out, int64_t slots, int threads, int direct) {
  struct job job = {files, file_count, offsets, pieces, nbytes, order, count, out, slots, direct, -1, 0, 0};
  if (file_count == 1) {
    job.shared_file = open(files[0], O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0));
    if (job.shared_file < 0) return errno;
  }
  pthread_t ids[64];
  int started = 0;
  while (started < threads && started < 64 && pthread_create(&ids[started], NULL, work, &job) == 0) started++;
  for (int i = 0; i < started; i++) pthread_join(ids[i], NULL);
  if (job.shared_file >= 0) close(job.shared_file);
  return started ? atomic_load(&job.error) : EAGAIN;
}

/* The limit of samples that are no rows: plain threads that copy pieces of different lengths, from[k] to out + to[k], out
   of memory where the file is mapped, or by pread where `base` is NULL. Returns 0 or the errno of the first failure. */
struct copying {
  const char *base;
  int file;
  const int64_t *from, *to, *nbytes;
  int64_t pieces, each;
  char *out;
  atomic_llong next;
  atomic_int error;
};

static void *copy(void *argument) {
  struct copying *all = argument;
  for (;;) {
    int64_t k = atomic_fetch_add(&all->next, all->each), end = k + all->each < all->pieces ? k + all->each : all->pieces;
    if (k >= end || atomic_load(&all->error)) return NULL;
    for (; k < end; k++) {
      char *to = all->out + all->to[k];
      int error = 0;
      if (all->base) memcpy(to, all->base + all->from[k], (size_t)all->nbytes[k]);
      else error = read_all(all->file, to, all->nbytes[k], all->from[k], all->nbytes[k]);
      if (error) atomic_store(&all->error, error);
    }
  }
}

int copy_pieces(const char *base, int file, const int64_t *from, const int64_t *to, const int64_t *nbytes, int64_t pieces,
                char *out, int threads) {
  struct copying all = {base, file, from, to, nbytes, pieces, pieces / (8 * threads) + 1, out, 0, 0};
  pthread_t ids[64];
  int started = 0;
  while (started + 1 < threads && started < 64 && pthread_create(&ids[started], NULL, copy, &all) == 0) started++;
  copy(&all);
  for (int i = 0; i < started; i++) pthread_join(ids[i], NULL);
  return atomic_load(&all.error);
}

/* Share of a file's pages that are in the page cache, in thousandths; -1 when it cannot be told. */
int resident(const char *path) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return -1;
  int64_t nbytes = lseek(file, 0, SEEK_END);
  if (nbytes == 0) {
    close(file);
    return 0;
  }
  void *map = nbytes > 0 ? mmap(NULL, (size_t)nbytes, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
  close(file);
  if (map == MAP_FAILED) return -1;
  int64_t pages = (nbytes + PAGE - 1) / PAGE, in = 0;
  unsigned char *seen = malloc((size_t)pages);
  int told = seen && mincore(map, (size_t)nbytes, seen) == 0;
  for (int64_t i = 0; told && i < pages; i++) in += seen[i] & 1;
  free(seen);
  munmap(map, (size_t)nbytes);
  return told ? (int)(in * 1000 / pages) : -1;
}
