#include "common/transport/ucx/put_writer.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/transport/ucx/endpoint.h"
#include "common/transport/ucx/message.h"
#include "common/transport/ucx/ucx_worker.h"

namespace baton::transport::ucx {
namespace {

// UCX reads a packed key without knowing its size: at most 64 parts of up to 256 bytes and a head.
// It finds zeros behind a key that is cut or made up.
constexpr size_t kMostReadOfKey = size_t{1} << 15;

}  // namespace

absl::StatusOr<std::unique_ptr<PutWriter>> PutWriter::Make(Endpoint& endpoint,
                                                           const Welcome& slots) {
  std::unique_ptr<PutWriter> writer(new PutWriter(endpoint, slots));
  std::string key = slots.rkey;
  key.resize(kMostReadOfKey);
  BATON_RETURN_IF_ERROR(
      FromUcs(ucp_ep_rkey_unpack(endpoint.handle(), key.data(), &writer->rkey_), "the peer's key"));
  return writer;
}

PutWriter::~PutWriter() {
  if (rkey_ != nullptr) {
    ucp_rkey_destroy(rkey_);  // no put uses it any more
  }
}

void PutWriter::Write(Written written,
                      const std::vector<std::span<const std::byte>>& sources,
                      Endpoint::Done done) {
  uint64_t address = slots_.base + uint64_t{slots_.slot_bytes} * written.slot;
  const auto put = std::make_shared<Put>(
      Put{std::move(written), std::move(done), /*open_operations=*/sources.size() + 1});
  puts_.push_back(put);
  const auto ended = [this, put](const absl::Status& status) { End(*put, status); };
  for (const std::span<const std::byte> source : sources) {
    endpoint_.Put(source, address, rkey_, ended);
    address += source.size();
  }
  endpoint_.Flush(ended);
}

void PutWriter::End(Put& put, const absl::Status& status) {
  put.status.Update(status);
  --put.open_operations;
  while (!puts_.empty() && puts_.front()->open_operations == 0) {
    const std::shared_ptr<Put> first = std::move(puts_.front());
    puts_.pop_front();
    if (first->status.ok()) {
      endpoint_.Send({.connection = slots_.connection, .body = std::move(first->written)});
    }
    first->done(first->status);
  }
}

}  // namespace baton::transport::ucx
