/* Stands between a process and the system (LD_PRELOAD): the n-th call of a name fails, is late, or hangs until it is let go; or at
   the n-th look at a clock the time of day jumps by an hour.

   Only calls are counted whose return address lies in a range that was given: those of solar's native code, of the C++
   library that begins its threads, and of Python. What torch, numpy and h5py ask of the system is theirs, and so is the
   memory that the interpreter takes for its own objects. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { NAMES = 64, RANGES = 64 };
enum mode { NOTHING, FAILS, LATE, HANGS, FORWARD, BACK };
enum { HOUR = 3600, SINCE_1970 = 1000000000 };

static struct { const char *name; atomic_long calls; } counted[NAMES];
static struct { uintptr_t begin, end; } ranges[RANGES];
static int range_count, of_interpreter;
static atomic_int counting, let_go;
static atomic_long met;
static unsigned char apart[1024]; /* descriptors whose calls are those of the tests */
static atomic_long jumped; /* seconds by which the time of day is off from now on */

/* What is asked for; written before `counting` is set. */
static char chosen[32];
static long nth, times;
static enum mode mode;
static int code;

static int index_of(const char *name) {
  for (int i = 0; i < NAMES; ++i) {
    if (counted[i].name && strcmp(counted[i].name, name) == 0) return i;
  }
  return -1;
}

static void rest(long milliseconds) {
  syscall(SYS_nanosleep, &(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000}, NULL);
}

/* Whether the system answers at once about this descriptor: a socket, pipe or eventfd that does not block, or memory. */
static int answers(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  struct stat facts;
  const int channel = syscall(SYS_fstat, fd, &facts) == 0 && (S_ISSOCK(facts.st_mode) || S_ISFIFO(facts.st_mode) || !(facts.st_mode & S_IFMT));
  return flags >= 0 && ((channel && (flags & O_NONBLOCK)) || fcntl(fd, F_GET_SEALS) >= 0);
}

/* Whether this call fails, with errno set. `path` is what it names, or NULL: what the interpreter asks of an open file, or of
   the kernel's own, is answered from memory, so that it neither hangs nor is late. Nor is what is asked of the descriptor
   `fd`, if the system answers at once; -1: of none. */
static int meets_any(const char *name, const void *from, const char *path, int fd) {
  if (!atomic_load(&counting)) return 0;
  if (fd >= 0 && fd < (int)sizeof apart && apart[fd]) return 0;
  if ((mode == LATE || mode == HANGS) && fd >= 0 && answers(fd)) return 0;
  const int instant = path ? strncmp(path, "/proc", 5) == 0 || strncmp(path, "/sys", 4) == 0
                           : strcmp(name, "read") == 0 || strcmp(name, "fstat64") == 0;
  if (instant && (mode == LATE || mode == HANGS)) return 0;
  const uintptr_t at = (uintptr_t)from;
  const int memory = strncmp(name, "mmap", 4) == 0 || strcmp(name, "madvise") == 0;
  int own = 0;
  for (int i = memory ? of_interpreter : 0; i < range_count && !own; ++i) own = at >= ranges[i].begin && at < ranges[i].end;
  if (!own) return 0;
  const int index = index_of(name);
  if (index < 0) return 0;
  const long number = atomic_fetch_add(&counted[index].calls, 1) + 1;
  if (mode == NOTHING || strcmp(chosen, name) != 0 || number < nth || number - nth >= times) return 0;
  atomic_fetch_add(&met, 1);
  if (mode == LATE) rest(100);
  if (mode == FORWARD) atomic_store(&jumped, HOUR);
  if (mode == BACK) atomic_store(&jumped, -HOUR);
  if (mode == HANGS) {
    while (!atomic_load(&let_go)) rest(2);
  }
  if (mode == FAILS) errno = code;
  return mode == FAILS;
}

static int meets(const char *name, const void *from) { return meets_any(name, from, NULL, -1); }

/* The names that are counted, ended by an empty one; and the ranges of code whose calls are, first the interpreter's. */
void stand_for(const char *const *names, const uintptr_t *bounds, int count, int interpreter) {
  of_interpreter = interpreter;
  for (int i = 0; i < NAMES && names[i]; ++i) counted[i].name = strdup(names[i]);
  range_count = count < RANGES ? count : RANGES;
  for (int i = 0; i < range_count; ++i) {
    ranges[i].begin = bounds[2 * i];
    ranges[i].end = bounds[2 * i + 1];
  }
}

void stand_begin(const char *name, long first, long how_often, int how, int error) {
  atomic_store(&counting, 0);
  strncpy(chosen, name, sizeof chosen - 1);
  nth = first, times = how_often, mode = how, code = error;
  for (int i = 0; i < NAMES; ++i) atomic_store(&counted[i].calls, 0);
  atomic_store(&met, 0);
  atomic_store(&jumped, 0);
  atomic_store(&let_go, 0);
  atomic_store(&counting, 1);
}

void stand_end(void) {
  atomic_store(&counting, 0);
  atomic_store(&let_go, 1);
}

void stand_apart(int fd) {
  if (fd >= 0 && fd < (int)sizeof apart) apart[fd] = 1;
}

long stand_met(void) { return atomic_load(&met); }

long stand_calls(const char *name) {
  const int index = index_of(name);
  return index < 0 ? 0 : atomic_load(&counted[index].calls);
}

#define NEXT(name) \
  static __typeof__(name) *next; \
  if (!next) next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define MEETS(name) meets(#name, __builtin_return_address(0))
#define MEETS_PATH(name) meets_any(#name, __builtin_return_address(0), path, -1)
#define MEETS_FD(name) meets_any(#name, __builtin_return_address(0), NULL, fd)
#define CALL(result, name, parameters, arguments, failure) \
  result name parameters { \
    NEXT(name); \
    return MEETS(name) ? (failure) : next arguments; \
  }
#define CALL_OF_PATH(result, name, parameters, arguments, failure) \
  result name parameters { \
    NEXT(name); \
    return MEETS_PATH(name) ? (failure) : next arguments; \
  }
#define CALL_OF_FD(result, name, parameters, arguments, failure) \
  result name parameters { \
    NEXT(name); \
    return MEETS_FD(name) ? (failure) : next arguments; \
  }

CALL_OF_PATH(int, stat, (const char *path, struct stat *into), (path, into), -1)
CALL_OF_PATH(int, lstat, (const char *path, struct stat *into), (path, into), -1)
CALL_OF_FD(int, fstat, (int fd, struct stat *into), (fd, into), -1)
CALL_OF_PATH(int, fstatat, (int fd, const char *path, struct stat *into, int flags), (fd, path, into, flags), -1)
CALL_OF_PATH(int, stat64, (const char *path, struct stat64 *into), (path, into), -1)
CALL_OF_PATH(int, lstat64, (const char *path, struct stat64 *into), (path, into), -1)
CALL_OF_FD(int, fstat64, (int fd, struct stat64 *into), (fd, into), -1)
CALL_OF_PATH(int, fstatat64, (int fd, const char *path, struct stat64 *into, int flags), (fd, path, into, flags), -1)
CALL_OF_PATH(int, statx, (int fd, const char *path, int flags, unsigned mask, struct statx *into), (fd, path, flags, mask, into), -1)
CALL(int, fstatvfs, (int fd, struct statvfs *into), (fd, into), -1)
CALL_OF_FD(ssize_t, read, (int fd, void *to, size_t size), (fd, to, size), -1)
CALL_OF_FD(ssize_t, write, (int fd, const void *from, size_t size), (fd, from, size), -1)
CALL_OF_FD(ssize_t, pread, (int fd, void *to, size_t size, off_t at), (fd, to, size, at), -1)
CALL_OF_FD(ssize_t, pwrite, (int fd, const void *from, size_t size, off_t at), (fd, from, size, at), -1)
CALL_OF_FD(ssize_t, pread64, (int fd, void *to, size_t size, off64_t at), (fd, to, size, at), -1)
CALL_OF_FD(ssize_t, pwrite64, (int fd, const void *from, size_t size, off64_t at), (fd, from, size, at), -1)
CALL_OF_FD(ssize_t, preadv, (int fd, const struct iovec *to, int count, off_t at), (fd, to, count, at), -1)
CALL_OF_FD(ssize_t, preadv2, (int fd, const struct iovec *to, int count, off_t at, int flags), (fd, to, count, at, flags), -1)
CALL_OF_FD(int, ftruncate, (int fd, off_t size), (fd, size), -1)
CALL_OF_FD(int, ftruncate64, (int fd, off64_t size), (fd, size), -1)
CALL_OF_FD(int, fsync, (int fd), (fd), -1)
CALL_OF_FD(int, fdatasync, (int fd), (fd), -1)
CALL(int, flock, (int fd, int what), (fd, what), -1)
CALL(int, rename, (const char *from, const char *to), (from, to), -1)
CALL(int, unlink, (const char *path), (path), -1)
CALL(int, mkdir, (const char *path, mode_t rights), (path, rights), -1)
CALL(void *, mmap, (void *at, size_t size, int rights, int flags, int fd, off_t from), (at, size, rights, flags, fd, from),
     MAP_FAILED)
CALL(void *, mmap64, (void *at, size_t size, int rights, int flags, int fd, off64_t from),
     (at, size, rights, flags, fd, from), MAP_FAILED)
CALL(int, madvise, (void *at, size_t size, int what), (at, size, what), -1)
CALL(int, memfd_create, (const char *name, unsigned flags), (name, flags), -1)
CALL(int, eventfd, (unsigned first, int flags), (first, flags), -1)
CALL(int, pipe2, (int ends[2], int flags), (ends, flags), -1)
CALL(int, socket, (int domain, int type, int protocol), (domain, type, protocol), -1)
CALL(int, socketpair, (int domain, int type, int protocol, int ends[2]), (domain, type, protocol, ends), -1)
CALL_OF_FD(int, connect, (int fd, const struct sockaddr *to, socklen_t size), (fd, to, size), -1)
CALL_OF_FD(ssize_t, send, (int fd, const void *from, size_t size, int flags), (fd, from, size, flags), -1)
CALL_OF_FD(ssize_t, sendmsg, (int fd, const struct msghdr *from, int flags), (fd, from, flags), -1)
CALL_OF_FD(ssize_t, recv, (int fd, void *to, size_t size, int flags), (fd, to, size, flags), -1)
CALL_OF_FD(ssize_t, recvmsg, (int fd, struct msghdr *to, int flags), (fd, to, flags), -1)
CALL(pid_t, fork, (void), (), -1)
CALL(void *, dlopen, (const char *path, int flags), (path, flags), NULL)

int posix_fadvise(int fd, off_t at, off_t size, int what) {
  NEXT(posix_fadvise);
  return MEETS(posix_fadvise) ? errno : next(fd, at, size, what);
}

int pthread_create(pthread_t *made, const pthread_attr_t *how, void *(*does)(void *), void *with) {
  NEXT(pthread_create);
  return MEETS(pthread_create) ? errno : next(made, how, does, with);
}

#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    NEXT(name); \
    va_list more; \
    va_start(more, flags); \
    const mode_t rights = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
    va_end(more); \
    return MEETS_PATH(name) ? -1 : next(path, flags, rights); \
  }
OPEN(open)
OPEN(open64)

/* What has no function of its own: by the number of the call. */
long syscall(long number, ...) {
  NEXT(syscall);
  va_list more;
  va_start(more, number);
  long given[6];
  for (int i = 0; i < 6; ++i) given[i] = va_arg(more, long);
  va_end(more);
  const char *name = number == SYS_io_uring_setup      ? "io_uring_setup"
                     : number == SYS_io_uring_enter    ? "io_uring_enter"
                     : number == SYS_io_uring_register ? "io_uring_register"
                     : number == 451                   ? "cachestat"
                                                       : NULL;
  if (name && meets(name, __builtin_return_address(0))) return -1;
  return next(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

/* Clocks. Only the time of day jumps; what passed since the machine was started does not. */

int clock_gettime(clockid_t clock, struct timespec *into) {
  NEXT(clock_gettime);
  MEETS(clock_gettime);
  const int result = next(clock, into);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) into->tv_sec += atomic_load(&jumped);
  return result;
}

int gettimeofday(struct timeval *into, void *zone) {
  NEXT(gettimeofday);
  const int result = next(into, zone);
  if (result == 0) into->tv_sec += atomic_load(&jumped);
  return result;
}

time_t time(time_t *into) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (into) *into = now.tv_sec;
  return now.tv_sec;
}

/* Whether a wait lasts until a time of day: then it ends sooner or later when that jumps. */
static int is_of_day(const struct timespec *until) { return until->tv_sec > SINCE_1970; }

/* The end of a part of such a wait by the system's own clock; 0 in `left` if the wait is over. */
static struct timespec part_of(const struct timespec *until, int *left) {
  struct timespec now;
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
  const long passed = now.tv_sec + atomic_load(&jumped);
  *left = passed < until->tv_sec || (passed == until->tv_sec && now.tv_nsec < until->tv_nsec);
  now.tv_nsec += 20000000;
  if (now.tv_nsec >= 1000000000) now.tv_sec += 1, now.tv_nsec -= 1000000000;
  return now;
}

int pthread_cond_timedwait(pthread_cond_t *of, pthread_mutex_t *held, const struct timespec *until) {
  NEXT(pthread_cond_timedwait);
  if (!is_of_day(until)) return next(of, held, until);
  for (int left, result;;) {
    const struct timespec part = part_of(until, &left);
    if ((result = next(of, held, left ? &part : &(struct timespec){SINCE_1970, 0})) != ETIMEDOUT || !left) return result;
  }
}

int sem_timedwait(sem_t *of, const struct timespec *until) {
  NEXT(sem_timedwait);
  if (!is_of_day(until)) return next(of, until);
  for (int left, result;;) {
    const struct timespec part = part_of(until, &left);
    if ((result = next(of, left ? &part : &(struct timespec){SINCE_1970, 0})) == 0 || errno != ETIMEDOUT || !left) return result;
  }
}

int sem_clockwait(sem_t *of, clockid_t clock, const struct timespec *until) {
  static int (*next)(sem_t *, clockid_t, const struct timespec *);
  if (!next) next = (int (*)(sem_t *, clockid_t, const struct timespec *))dlsym(RTLD_NEXT, "sem_clockwait");
  return clock == CLOCK_REALTIME ? sem_timedwait(of, until) : next(of, clock, until);
}
