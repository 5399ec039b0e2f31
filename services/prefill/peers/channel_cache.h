// Channels to decode workers, kept between requests.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"

namespace baton::prefill {

// At most kMaxChannels; the oldest goes first (calls that use it keep it alive). Thread-safe;
// nothing blocks.
class ChannelCache {
 public:
  static constexpr size_t kMaxChannels = 1024;

  // `server_name` as in rpc::TlsOptions.
  ChannelCache(std::shared_ptr<grpc::ChannelCredentials> credentials, std::string server_name);

  // The channel to `address` (host:port), made at its first use.
  std::shared_ptr<grpc::Channel> Get(const std::string& address);

 private:
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  const std::string server_name_;
  absl::Mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<grpc::Channel>> channels_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> oldest_first_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::prefill
