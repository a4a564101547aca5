/* A disk that fails once, or breaks. Preloaded into a process; below a directory it counts what is written and what is
   synced, by whichever library, and lets one of these calls, or every sync, fail with EIO. The bytes whose sync failed are zeros from then on, as
   when the pages that Linux has marked as clean are evicted; a later sync succeeds, as it does there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define RANGES 65536
#define REAL(type, name, ...) \
  static type (*real)(__VA_ARGS__); \
  if (!real) real = dlsym(RTLD_NEXT, name)

static struct { dev_t device; ino_t inode; off_t from, to; } dirty[RANGES];
static int ranges, syncs, writes, broken, fail_sync = -1, fail_write = -1, trace = -1;
static char root[4096];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int below(const char *path) {
  size_t size = strlen(root);
  if (!size || strncmp(path, root, size) || (path[size] != '/' && path[size])) return 0;
  return !strstr(path, "/index/") && !strstr(path, "/spill") && !strstr(path, "-shm") && !strstr(path, ".lock");
}

static int path_of(int fd, char *path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, 4095);
  path[size < 0 ? 0 : size] = 0;
  return size > 0 && below(path);
}

static ssize_t raw_write(int fd, const void *data, size_t size) {
  REAL(ssize_t, "write", int, const void *, size_t);
  return real(fd, data, size);
}

static void note(char what, const char *path) {
  char line[4200];
  int size = snprintf(line, sizeof line, "%c %s\n", what, path);
  if (trace >= 0) raw_write(trace, line, size);
}

/* Begin: `directory` is watched from now on; the call with the number `sync` or `write` fails, counted from 0. */
void disk_begin(const char *directory, const char *log, int sync, int write) {
  snprintf(root, sizeof root, "%s", directory);
  trace = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  ranges = syncs = writes = 0;
  fail_sync = sync;
  fail_write = write;
}

void disk_break(void) { broken = 1; }
int disk_syncs(void) { return syncs; }
int disk_writes(void) { return writes; }

/* The bytes of a file that were written since its last sync: forgotten, or lost. */
static void settle(int fd, int lost) {
  struct stat found;
  char path[64];
  if (fstat(fd, &found)) return;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int again = lost && S_ISREG(found.st_mode) ? open(path, O_WRONLY | O_CLOEXEC) : -1;
  for (int at = ranges - 1; at >= 0; at--) {
    if (dirty[at].device != found.st_dev || dirty[at].inode != found.st_ino) continue;
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off_t);
    static const char zeros[65536];
    for (off_t from = dirty[at].from; again >= 0 && from < dirty[at].to; from += sizeof zeros) {
      off_t size = dirty[at].to - from;
      real(again, zeros, size < (off_t)sizeof zeros ? (size_t)size : sizeof zeros, from);
    }
    dirty[at] = dirty[--ranges];
  }
  if (again >= 0) close(again);
}

static int synced(int fd, int (*real)(int)) {
  char path[4096];
  if (!path_of(fd, path)) return real(fd);
  pthread_mutex_lock(&lock);
  int fails = syncs++ == fail_sync || broken;
  int answer = fails ? -1 : real(fd);
  settle(fd, fails);
  note(fails ? 'F' : 'S', path);
  pthread_mutex_unlock(&lock);
  if (fails) errno = EIO;
  return answer;
}

#define SYNC(name) \
  int name(int fd) { \
    REAL(int, #name, int); \
    return synced(fd, real); \
  }
SYNC(fsync)
SYNC(fdatasync)

/* Whether the write is to fail; one that is not is remembered. At offset -1: where the file stands. */
static int refused(int fd, size_t size, off_t offset) {
  char path[4096];
  struct stat found;
  if (!path_of(fd, path) || fstat(fd, &found) || !S_ISREG(found.st_mode)) return 0;
  pthread_mutex_lock(&lock);
  int fails = writes++ == fail_write;
  if (fails) note('W', path);
  if (!fails && ranges < RANGES) {
    if (offset < 0) offset = fcntl(fd, F_GETFL) & O_APPEND ? found.st_size : lseek(fd, 0, SEEK_CUR);
    dirty[ranges].device = found.st_dev;
    dirty[ranges].inode = found.st_ino;
    dirty[ranges].from = offset;
    dirty[ranges++].to = offset + (off_t)size;
  }
  pthread_mutex_unlock(&lock);
  if (fails) errno = EIO;
  return fails;
}

ssize_t write(int fd, const void *data, size_t size) { return refused(fd, size, -1) ? -1 : raw_write(fd, data, size); }

#define PWRITE(name, place) \
  ssize_t name(int fd, const void *data, size_t size, place offset) { \
    REAL(ssize_t, #name, int, const void *, size_t, place); \
    return refused(fd, size, offset) ? -1 : real(fd, data, size, offset); \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t writev(int fd, const struct iovec *parts, int count) {
  REAL(ssize_t, "writev", int, const struct iovec *, int);
  size_t size = 0;
  for (int at = 0; at < count; at++) size += parts[at].iov_len;
  return refused(fd, size, -1) ? -1 : real(fd, parts, count);
}

/* Names: a sync of their directory is to follow. */
static void named(const char *path, int answer) {
  char full[4096];
  if (answer < 0) return;
  if (path[0] == '/') snprintf(full, sizeof full, "%s", path);
  else if (getcwd(full, 2048)) snprintf(full + strlen(full), 2000, "/%s", path);
  if (below(full)) note('N', full);
}

#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    va_list rest; \
    va_start(rest, flags); \
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0; \
    va_end(rest); \
    REAL(int, #name, const char *, int, ...); \
    int fresh = flags & O_CREAT && access(path, F_OK); \
    int answer = real(path, flags, mode); \
    if (fresh) named(path, answer); \
    return answer; \
  }
OPEN(open)
OPEN(open64)

#define NAMES(name, path, parameters, arguments) \
  int name parameters { \
    static int (*real) parameters; \
    if (!real) real = dlsym(RTLD_NEXT, #name); \
    int answer = real arguments; \
    named(path, answer); \
    return answer; \
  }
NAMES(link, to, (const char *from, const char *to), (from, to))
NAMES(linkat, to, (int old, const char *from, int new, const char *to, int flags), (old, from, new, to, flags))
NAMES(rename, to, (const char *from, const char *to), (from, to))
NAMES(renameat, to, (int old, const char *from, int new, const char *to), (old, from, new, to))
NAMES(renameat2, to, (int old, const char *from, int new, const char *to, unsigned flags), (old, from, new, to, flags))
NAMES(mkdir, path, (const char *path, mode_t mode), (path, mode))
