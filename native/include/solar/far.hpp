// Files that lie elsewhere: what has a URL for a path is read by orders that somebody outside this library fetches.
//
// A Far knows no protocol. Who wants bytes makes an order; threads of the program (solar/io/far) take orders, fetch the
// bytes by a library of theirs, and give them back, or say why there are none. They make a request again where that
// may help; so nobody here does.
//
// There is one Far in a process, and any thread may call any function; one mutex guards all of it. Memory that an order
// writes to is the caller's, and stays until the order's result was taken from its Mailbox: every order has one result,
// also when nobody fetches any more. A forked process has a Far of its own, without orders. Errors are Error(read) with
// the URL and the words of who fetched.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <sys/uio.h>
#include <unordered_map>
#include <vector>

#include "solar/file.hpp"
#include "solar/sleepers.hpp"

namespace solar {

class Far {
 public:
  // What came of an order: bytes that were put into place, or minus errno, and then in words why.
  struct Result {
    std::uint64_t tag = 0;
    std::int64_t nbytes = 0;
    std::string why;
  };

  // Where results wait for who ordered.
  class Mailbox {
   public:
    void put(Result result);
    // The next result, waited for so long; false when none came.
    bool take(Result& result, std::chrono::nanoseconds limit);

   private:
    std::mutex mutex_;
    std::condition_variable has_come_;
    std::deque<Result> results_;
  };

  struct Order {
    std::uint64_t number = 0;
    std::string url;
    std::uint64_t offset = 0, nbytes = 0;  // none: what is asked is what there is, its identity
    Identity was;                          // what the bytes must be of, where there are some
  };

  // Of what begins with a scheme: a folder of this machine may have such a name.
  static bool is_url(std::string_view path) noexcept {
    const std::size_t colon = path.find("://");
    return colon != std::string_view::npos && colon > 0 && path.find('/') == colon + 1;
  }
  // The one of this process. A forked one has its own, with none of the other's orders.
  static Far& get() noexcept;
  static void forget() noexcept;

  // For who wants bytes: the memory stays until the result was taken. A part without an address is a hole: nobody wants
  // its bytes.
  std::uint64_t order(const std::string& url, const Identity& was, std::vector<iovec> parts, std::uint64_t offset,
                      std::uint64_t tag, std::shared_ptr<Mailbox> to);
  // The same, and waits for it. Error(read) with the words of who fetched, or if nobody answers anything.
  void read(const std::string& url, const Identity& was, std::uint64_t offset, MutableBytes out);
  // Like read, of metadata: more is fetched than is asked, and what was is kept for a while, a few MiB of it.
  void read_kept(const std::string& url, const Identity& was, std::uint64_t offset, MutableBytes out);
  // That this metadata will be read soon: with the next read_kept all that is expected is ordered together.
  void expect(const std::string& url, const Identity& was, std::uint64_t offset, std::uint64_t nbytes);
  // What the file is now; one that was asked for a moment ago is not asked again. Error(read) where it cannot be had.
  Identity look(const std::string& url);

  // For who fetches. The next order, waited for; nothing once it has ended. What is fetched lies in memory of who fetches
  // until it is given: so no order is handed out while those under way have as much as begin() said.
  std::optional<Order> take();
  // Its bytes: Error(read) unless they are as many as were asked for. An order that is not there is ignored.
  void give(std::uint64_t number, Bytes bytes);
  void give(std::uint64_t number, const Identity& now);
  void refuse(std::uint64_t number, int code, std::string why);
  // Somebody fetches from here on, so many bytes at a time; until end(), which refuses what is ordered. Without, an order
  // is refused in words. After `patience` without an answer to any order, who waits for one in read or look gives up.
  void begin(std::uint64_t most_under_way, std::chrono::nanoseconds patience = longest_silence) noexcept;
  void end();
  // Whether an order waits for a thread that takes it, or the next one would: no thread is in take().
  bool short_of_threads() const;

 private:
  struct Pending {
    bool taken = false;
    std::vector<iovec> parts;  // none: it is looked for
    std::uint64_t nbytes = 0;
    std::uint64_t tag = 0;
    std::shared_ptr<Mailbox> to;
    Identity* now = nullptr;
  };
  struct Block {
    std::string url;
    Identity was;
    std::uint64_t offset;
    std::vector<std::byte> bytes;
  };
  struct Expected {
    std::string url;
    Identity was;
    std::uint64_t begin, end;
  };
  struct Seen {
    Identity identity;
    std::chrono::steady_clock::time_point at;
  };

  static constexpr std::chrono::seconds longest_silence{150};  // more than twice what a request may take

  std::uint64_t place(Order order, Pending pending);
  Result result_of(std::uint64_t number, Mailbox& box);
  bool silent() const;
  Pending take_pending(std::uint64_t number);
  bool may_take() const noexcept;
  bool copy_kept(const std::string& url, const Identity& was, std::uint64_t& offset, MutableBytes& out);
  void keep(Block block);
  void order_expected();
  bool has_come(const std::string& url, const Identity& was, std::uint64_t offset);

  mutable std::mutex mutex_;
  Sleepers fetchers_{mutex_};  // threads that wait for an order
  std::deque<Order> orders_;
  std::unordered_map<std::uint64_t, Pending> pending_;
  std::uint64_t last_ = 0;
  std::chrono::nanoseconds patience_ = longest_silence;
  std::chrono::steady_clock::time_point answered_;  // some order, or when the oldest of those under way was made
  bool fetches_ = false;
  std::uint64_t under_way_ = 0;  // bytes that were taken, and not given yet
  std::uint64_t most_under_way_ = 0;
  std::list<Block> kept_;  // the one used last comes first
  std::uint64_t kept_nbytes_ = 0;
  std::vector<Expected> expected_;
  std::unordered_map<std::uint64_t, Block> coming_;  // by the tags of their orders
  std::uint64_t coming_nbytes_ = 0, last_coming_ = 0;
  std::shared_ptr<Mailbox> coming_box_ = std::make_shared<Mailbox>();
  std::map<std::string, Seen> seen_;
};

}  // namespace solar
