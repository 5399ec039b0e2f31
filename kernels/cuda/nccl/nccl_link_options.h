// How links over NCCL are made.
#pragma once

namespace baton::kernels::cuda {

struct NcclLinkOptions {
  // Slots are registered with the communicator, so that the sender's kernel may write into the
  // receiver's slot without NCCL's buffers in between; how fast that is can be measured. Both ends
  // of a pair have to agree: what NCCL does with one that is registered and one that is not is
  // undefined. Off for services: a pair ends by an abort whatever its peer does, and giving
  // registered memory back waits for the peer's process (adr/0019).
  bool registers_slots = false;
};

}  // namespace baton::kernels::cuda
