#include "common/transport/ucx/message_writer.h"

#include <span>
#include <utility>
#include <vector>

#include "common/transport/ucx/endpoint.h"
#include "common/transport/ucx/message.h"

namespace baton::transport::ucx {

void MessageWriter::Write(Written written,
                          const std::vector<std::span<const std::byte>>& sources,
                          Endpoint::Done done) {
  for (const std::span<const std::byte> source : sources) {
    written.bytes.append(reinterpret_cast<const char*>(source.data()), source.size());
  }
  endpoint_.Send({.connection = connection_, .body = std::move(written)}, std::move(done));
}

}  // namespace baton::transport::ucx
