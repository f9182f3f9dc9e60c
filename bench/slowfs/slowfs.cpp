// Mounts a folder again, read-only, as a slow storage: each piece of a read is answered when model.hpp says.
//
//     slowfs SOURCE MOUNTPOINT -o latency=SECONDS,bandwidth=BYTES_A_SECOND,iops=REQUESTS_A_SECOND,rpc=BYTES,cached=0
//
// It stays in the foreground; SIGTERM or SIGINT ends it and unmounts, and so does the end of whoever started it. The
// kernel's page cache is bypassed (direct_io), so every reader meets the storage, with O_DIRECT and without; with cached=1
// it is not, for readers whose page cache is a part of the memory that they may have. Looking up
// names and opening cost nothing. The file .slowfs in the root tells what was counted, as JSON, and costs nothing
// either: requests, pieces, bytes; late_seconds: by how much, summed, pieces were answered later than they should, which
// is this machine's doing; and most_late_seconds, the most for one.
#define FUSE_USE_VERSION 314
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "model.hpp"

namespace {

using slowfs::Nanos;

constexpr const char* counts_name = ".slowfs";
constexpr fuse_ino_t counts_ino = 2;
constexpr double remembered = 1.0;  // seconds for which the kernel believes names and sizes
constexpr unsigned threads = 512;   // the most pieces that wait side by side
constexpr int urgency = -15;        // a storage does not wait for the readers' processors

Nanos now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * Nanos{1'000'000'000} + time.tv_nsec;
}

void sleep_until(Nanos when) {
  const timespec time{when / 1'000'000'000, when % 1'000'000'000};
  while (now() < when && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) == EINTR) continue;
}

// The paths by inode number. What was looked up once is never forgotten: the mount is short-lived.
class Names {
 public:
  explicit Names(std::string root)
      : paths_{
            "",
            std::move(root),
            "",
        } {}

  std::string path(fuse_ino_t ino) {
    std::lock_guard lock(mutex_);
    return paths_.at(ino);
  }

  fuse_ino_t number(const std::string& path) {
    std::lock_guard lock(mutex_);
    const auto [found, is_new] = numbers_.try_emplace(path, paths_.size());
    if (is_new) paths_.push_back(path);
    return found->second;
  }

 private:
  std::mutex mutex_;
  std::deque<std::string> paths_;  // [FUSE_ROOT_ID] is the source
  std::unordered_map<std::string, fuse_ino_t> numbers_;
};

struct Mount {
  Mount(std::string source, slowfs::Costs costs, bool cached)
      : names(std::move(source)), model(costs), cached(cached) {}

  Names names;
  slowfs::Model model;
  const bool cached;
  std::atomic<Nanos> late{0}, most_late{0};
};

// An open file: closed when the last of its opener's descriptors is.
struct Open {
  int file;
  off_t nbytes;
  ~Open() { close(file); }
};

Mount& mount_of(fuse_req_t request) { return *static_cast<Mount*>(fuse_req_userdata(request)); }

struct stat counts_facts() {
  struct stat facts {};
  facts.st_ino = counts_ino;
  facts.st_mode = S_IFREG | 0444;
  facts.st_nlink = 1;
  return facts;
}

// 0, or an errno.
int facts_of(Mount& mount, fuse_ino_t ino, struct stat& facts) {
  if (ino == counts_ino) {
    facts = counts_facts();
    return 0;
  }
  if (stat(mount.names.path(ino).c_str(), &facts) != 0) return errno;
  facts.st_ino = ino;
  return 0;
}

void lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  Mount& mount = mount_of(request);
  fuse_entry_param entry{};
  const bool is_counts = parent == FUSE_ROOT_ID && std::strcmp(name, counts_name) == 0;
  const std::string path = mount.names.path(parent) + "/" + name;
  struct stat facts;
  if (!is_counts && stat(path.c_str(), &facts) != 0) {
    fuse_reply_err(request, errno);
    return;
  }
  entry.ino = is_counts ? counts_ino : mount.names.number(path);
  entry.attr_timeout = entry.entry_timeout = remembered;
  const int error = facts_of(mount, entry.ino, entry.attr);
  error ? fuse_reply_err(request, error) : fuse_reply_entry(request, &entry);
}

void getattr(fuse_req_t request, fuse_ino_t ino, fuse_file_info*) {
  struct stat facts;
  const int error = facts_of(mount_of(request), ino, facts);
  error ? fuse_reply_err(request, error) : fuse_reply_attr(request, &facts, remembered);
}

void readdir(fuse_req_t request, fuse_ino_t ino, size_t size, off_t offset, fuse_file_info*) {
  std::error_code error;
  std::filesystem::directory_iterator entries(mount_of(request).names.path(ino), error);
  if (error) {
    fuse_reply_err(request, error.value());
    return;
  }
  std::vector<char> out(size);
  size_t used = 0;
  off_t place = 0;
  for (auto entry = begin(entries); entry != end(entries); entry.increment(error)) {
    if (error) break;
    if (place++ < offset) continue;
    struct stat facts {};
    facts.st_ino = 1 << 20;  // the real number comes with the lookup
    facts.st_mode = entry->is_directory(error) ? S_IFDIR : S_IFREG;
    const std::string name = entry->path().filename();
    const size_t needed = fuse_add_direntry(request, out.data() + used, size - used, name.c_str(), &facts, place);
    if (needed > size - used) break;
    used += needed;
  }
  fuse_reply_buf(request, out.data(), used);
}

void open(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info) {
  if ((info->flags & O_ACCMODE) != O_RDONLY) {
    fuse_reply_err(request, EROFS);
    return;
  }
  info->direct_io = ino == counts_ino || !mount_of(request).cached;
  info->keep_cache = !info->direct_io;
  info->fh = 0;
  if (ino != counts_ino) {
    const int file = ::open(mount_of(request).names.path(ino).c_str(), O_RDONLY | O_CLOEXEC);
    struct stat facts;
    if (file < 0 || fstat(file, &facts) != 0) {
      fuse_reply_err(request, errno);
      if (file >= 0) close(file);
      return;
    }
    info->fh = reinterpret_cast<std::uint64_t>(new Open{file, facts.st_size});
  }
  fuse_reply_open(request, info);
}

void release(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  delete reinterpret_cast<Open*>(info->fh);
  fuse_reply_err(request, 0);
}

void tell_counts(fuse_req_t request, size_t size, off_t offset) {
  Mount& mount = mount_of(request);
  const slowfs::Counts counts = mount.model.counts();
  char text[256];
  const int length =
      std::snprintf(text, sizeof text,
                    "{\"requests\": %" PRIu64 ", \"pieces\": %" PRIu64 ", \"bytes\": %" PRIu64
                    ", \"late_seconds\": %.6f, \"most_late_seconds\": %.6f}\n",
                    counts.requests, counts.pieces, counts.bytes, mount.late * 1e-9, mount.most_late * 1e-9);
  const off_t from = std::min<off_t>(offset, length);
  fuse_reply_buf(request, text + from, std::min<size_t>(size, length - from));
}

// 0, or an errno.
int read_all(int file, char* to, size_t nbytes, off_t offset) {
  while (nbytes > 0) {
    const ssize_t count = pread(file, to, nbytes, offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return count < 0 ? errno : EIO;
    to += count, offset += count, nbytes -= static_cast<size_t>(count);
  }
  return 0;
}

void note_late(Mount& mount, Nanos late) {
  mount.late += late;
  Nanos most = mount.most_late;
  while (late > most && !mount.most_late.compare_exchange_weak(most, late)) continue;
}

void read(fuse_req_t request, fuse_ino_t ino, size_t size, off_t offset, fuse_file_info* info) {
  if (ino == counts_ino) {
    tell_counts(request, size, offset);
    return;
  }
  const Open& open = *reinterpret_cast<Open*>(info->fh);
  const size_t nbytes = std::min<size_t>(size, std::max<off_t>(open.nbytes - offset, 0));
  if (nbytes == 0) {
    fuse_reply_buf(request, nullptr, 0);
    return;
  }
  Mount& mount = mount_of(request);
  const Nanos asked = now();
  const slowfs::Piece piece = mount.model.arrive(ino, static_cast<std::uint64_t>(offset), nbytes, asked);
  sleep_until(piece.ready);
  const Nanos due = mount.model.send(piece);
  thread_local std::vector<char> room;
  if (room.size() < nbytes) room.resize(nbytes);
  const int error = read_all(open.file, room.data(), nbytes, offset);
  sleep_until(due);
  const Nanos passed = now();
  mount.model.done(piece, passed);
  note_late(mount, passed - std::max(due, asked));
  error ? fuse_reply_err(request, error) : fuse_reply_buf(request, room.data(), nbytes);
}

void statfs(fuse_req_t request, fuse_ino_t) {
  struct statvfs facts;
  const int failed = statvfs(mount_of(request).names.path(FUSE_ROOT_ID).c_str(), &facts);
  failed ? fuse_reply_err(request, errno) : fuse_reply_statfs(request, &facts);
}

void init(void*, fuse_conn_info* connection) {
  connection->max_background = threads;  // of reads that their caller does not wait in
  connection->congestion_threshold = threads;
}

constexpr fuse_lowlevel_ops all_operations() {
  fuse_lowlevel_ops made{};
  made.init = init;
  made.lookup = lookup;
  made.getattr = getattr;
  made.readdir = readdir;
  made.open = open;
  made.read = read;
  made.release = release;
  made.statfs = statfs;
  return made;
}

struct Asked {
  double latency = 0, bandwidth = 0, iops = 0, rpc = 0, cached = 0;
  char* source = nullptr;
};

#define COST(name) \
  { #name "=%lf", offsetof(Asked, name), 0 }
constexpr fuse_opt options[] = {COST(latency), COST(bandwidth), COST(iops), COST(rpc), COST(cached), FUSE_OPT_END};
#undef COST

// The first word that is no option is the source; all else is libfuse's.
int take_source(void* data, const char* word, int key, fuse_args*) {
  Asked& asked = *static_cast<Asked*>(data);
  if (key != FUSE_OPT_KEY_NONOPT || asked.source) return 1;
  asked.source = realpath(word, nullptr);
  return asked.source ? 0 : -1;
}

// Answers until it is told to end; a status of the process.
int serve(fuse_session* session, const char* mountpoint) {
  if (fuse_set_signal_handlers(session) != 0) return 1;
  if (fuse_session_mount(session, mountpoint) != 0) return 1;
  fuse_loop_config* config = fuse_loop_cfg_create();
  fuse_loop_cfg_set_max_threads(config, threads);
  fuse_loop_cfg_set_idle_threads(config, threads);
  fuse_loop_cfg_set_clone_fd(config, 1);
  const int ended = fuse_session_loop_mt(session, config);
  fuse_loop_cfg_destroy(config);
  fuse_session_unmount(session);
  fuse_remove_signal_handlers(session);
  return ended < 0 ? 1 : 0;
}

}  // namespace

int main(int count, char** words) {
  const pid_t starter = getppid();
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != starter) return 1;
  prctl(PR_SET_TIMERSLACK, 1);  // nanosecond; the threads inherit it
  if (setpriority(PRIO_PROCESS, 0, urgency) != 0) std::fprintf(stderr, "slowfs: no priority over the readers here\n");
  fuse_args args = FUSE_ARGS_INIT(count, words);
  Asked asked;
  fuse_cmdline_opts line{};
  const bool told = fuse_opt_parse(&args, &asked, options, take_source) == 0 && fuse_parse_cmdline(&args, &line) == 0;
  if (!told || !asked.source || !line.mountpoint) {
    std::fprintf(stderr,
                 "slowfs SOURCE MOUNTPOINT -o latency=SECONDS,bandwidth=BYTES_A_SECOND,iops=REQUESTS_A_SECOND,rpc=BYTES\n");
    return 2;
  }
  Mount mount(asked.source, {static_cast<Nanos>(asked.latency * 1e9), asked.bandwidth, asked.iops,
                             static_cast<std::uint64_t>(asked.rpc)},
              asked.cached != 0);
  constexpr fuse_lowlevel_ops operations = all_operations();
  fuse_session* session = fuse_session_new(&args, &operations, sizeof operations, &mount);
  const int status = session ? serve(session, line.mountpoint) : 1;
  if (session) fuse_session_destroy(session);
  free(line.mountpoint);
  free(asked.source);
  fuse_opt_free_args(&args);
  return status;
}
