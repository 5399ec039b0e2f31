#include "services/prefill/peers/channel_cache.h"

#include <utility>

#include "common/rpc/channel.h"

namespace baton::prefill {

ChannelCache::ChannelCache(std::shared_ptr<grpc::ChannelCredentials> credentials,
                           std::string server_name)
    : credentials_(std::move(credentials)), server_name_(std::move(server_name)) {}

std::shared_ptr<grpc::Channel> ChannelCache::Get(const std::string& address) {
  absl::MutexLock lock(&mutex_);
  auto& channel = channels_[address];
  if (channel != nullptr) {
    return channel;
  }
  channel = rpc::MakeChannel(address, credentials_, server_name_, rpc::Exposure::kInternal);
  std::shared_ptr<grpc::Channel> made = channel;
  oldest_first_.push_back(address);
  if (oldest_first_.size() > kMaxChannels) {
    channels_.erase(oldest_first_.front());
    oldest_first_.pop_front();
  }
  return made;
}

}  // namespace baton::prefill
