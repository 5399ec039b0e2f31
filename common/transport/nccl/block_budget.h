// Thread blocks of a GPU that transfers hold at once.
#pragma once

#include <cstdint>

namespace baton::transport::nccl {

// A kernel of NCCL spins until its counterpart on the other GPU runs, and a counterpart that finds
// no multiprocessor free does not run: with many pairs they could wait for each other in a ring. So
// a link begins only where all of its blocks fit beside those of the others, on either end. Not
// thread-safe.
class BlockBudget {
 public:
  // What one link has of it; gives it back at its end.
  class Share {
   public:
    explicit Share(BlockBudget& budget) : budget_(budget) {}
    ~Share() { GiveBack(); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // Whether the link holds `blocks`, from now on or already. A link of more than there are has
    // the GPU for itself.
    bool Take(int32_t blocks) {
      if (held_ == 0 && (budget_.held_ == 0 || budget_.held_ + blocks <= budget_.blocks_)) {
        held_ = blocks;
        budget_.held_ += blocks;
      }
      return held_ != 0;
    }
    void GiveBack() {
      budget_.held_ -= held_;
      held_ = 0;
    }

   private:
    BlockBudget& budget_;
    int32_t held_ = 0;
  };

  explicit BlockBudget(int32_t blocks) : blocks_(blocks) {}

 private:
  const int32_t blocks_;
  int32_t held_ = 0;
};

}  // namespace baton::transport::nccl
