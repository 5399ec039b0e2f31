// An HTTP connection that ends at a given time, however slowly its peer reads or writes.
#pragma once

#include <httplib.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <string>

#include "absl/time/time.h"

namespace baton::http {

// A connected socket as cpp-httplib reads and writes it. The library's own stream limits each read;
// a peer that sends a byte now and then keeps such a stream for hours. This one fails everything
// after its deadline. Not thread-safe; the socket is borrowed.
class DeadlineStream final : public httplib::Stream {
 public:
  // `stop` is borrowed: waiting reads and writes fail soon after it turned true.
  DeadlineStream(socket_t socket, absl::Time deadline, const std::atomic<bool>& stop)
      : socket_(socket), deadline_(deadline), stop_(stop) {}

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* ptr, size_t size) override;
  ssize_t write(const char* ptr, size_t size) override;
  socket_t socket() const override { return socket_; }
  // Who connects is not logged and of no use to a page.
  void get_remote_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  void get_local_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}

 private:
  // Waits for `events` of poll(2); false at the deadline, on an error, or when told to stop.
  bool Wait(int events) const;

  const socket_t socket_;
  const absl::Time deadline_;
  const std::atomic<bool>& stop_;
};

}  // namespace baton::http
