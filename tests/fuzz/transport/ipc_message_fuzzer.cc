// Any bytes as a message between workers of one machine.
#include <cstddef>
#include <cstdint>

#include "common/transport/ipc/message.h"
#include "tests/fuzz/transport/message_fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace format = baton::transport::ipc;
  baton::transport::FuzzMessage(data, size, format::DecodeMessage, format::EncodeMessage);
  return 0;
}
