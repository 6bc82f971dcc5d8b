// Phases A and C: the prefixes of a cluster, packed, forward and backward (the paper, Section 3.2).
//
//   Phase A  PrefixForward    keeps K_l, V_l of all layers, and of the tape what the policy says
//   Phase C  PrefixBackward   from gK_l, gV_l of all layers alone
//
// The packed rows may be cut into blocks: a block attends to the K/V of its prefixes' earlier rows, as a suffix attends
// to its prefix. Phase A runs them in order, Phase C in reverse, so that only one block's working set exists at a time;
// with policy S5 only one block's tape, recomputed in Phase C. In the last layer only K and V are computed.
//
// A pipeline's stage runs its own layers, all in full but for the model's last one, and hands block by block to the
// next stage in Phase A, and to the one before in Phase C.
//
// With context parallelism each rank runs pieces of every block, behind the K/V of all ranks' earlier rows. All of them
// make the same calls; what they exchange is the hot set's business (worker/model/hot_set.h).
//
// The tape may leave the device layer by layer, right after its layer made it, and come back before its layer's
// backward reads it; K/V and gK/gV never leave.
//
// Called by worker/engine on the engine thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/memory/offload_store.h"
#include "worker/model/hot_set.h"
#include "worker/model/kv_block.h"
#include "worker/model/layer.h"
#include "worker/model/layer_final.h"
#include "worker/model/prefix_rows.h"

namespace stemma::worker {

struct PrefixOptions {
  bool forward_only = false;  // K/V only: no tape, no gK/gV
  v1::TapePolicy policy = v1::S0;
  int64_t block_rows = 0;         // 0: all rows at once
  bool regather = false;          // where context-parallel ranks share the rows: each holds the K/V of its own alone
  bool others_run_again = false;  // where parameters are sharded: other copies run blocks forward again in Phase C
  std::vector<uint32_t> multiplicities = {};  // of each prefix, where its rows are counted: LayerContext::counted
  // Where the tape goes; null: it stays. They outlive the batch.
  HostArena* host = nullptr;
  CopyEngine* copy_engine = nullptr;
  int64_t offload_headroom_bytes = 0;  // of the tape that may be on the device beside the layer at work
};

// A block, and what it keeps until Phase C.
struct PrefixBlock {
  PrefixBlockRows rows;
  std::vector<LayerTape> tape;  // of the layers that run in full; none of a rank without rows in the block
  KvTape last;                  // of the model's last layer, on the stage that has it
  at::Tensor input_TD = {};     // that another stage has made, where the block is to run again (S5)
};

// The hot set and, until Phase C, the dormant tape.
struct PrefixBatch {
  PrefixOptions options;
  at::Tensor tokens_T, positions_T;       // of this rank's rows
  std::vector<PrefixBlock> blocks;        // in order
  std::unique_ptr<HotSet> kv;             // null: there are no prefixes
  std::unique_ptr<OffloadStore> offload;  // of the tensors of the blocks' tapes; null: they are in the blocks
  int64_t hidden_sent = 0;                // of StageLinks, when Phase A had ended

  // Returns how many rows this rank runs.
  int64_t own_rows() const { return tokens_T.defined() ? tokens_T.numel() : 0; }
  // Returns the hot set where it is one of all rows. CHECKs that it is: groups are not split where K/V are gathered
  // again.
  LocalHotSet& all_rows() const;
  // Lets copies go on; called between the layers of a wave.
  void Poll() const {
    if (offload != nullptr) offload->Poll();
  }
  // The last wave begins: the tape may start to come back.
  void LastWave() const {
    if (offload != nullptr) offload->ConsumeSoon();
  }
};

// tokens: the prefixes' tokens, one after the other; lengths: of each, > 0.
PrefixBatch PrefixForward(const LayerContext& context, const std::vector<int64_t>& tokens,
                          const std::vector<int64_t>& lengths, const PrefixOptions& options);

// Makes the visits to parameters of a block's forward, which other copies of the model run.
void JoinPrefixForward(const LayerContext& context);

// Makes the hot set of all rows, without a tape, of one prefix of so many rows that another rank computes: K/V are for
// the caller to fill, gK/gV are zeros (none in a forward-only pass). It has no Phase C.
PrefixBatch BorrowedPrefix(const LayerContext& context, int64_t rows, bool forward_only);

// Consumes the batch; adds all parameters' gradients that come through the prefixes' K/V. `layer_final`: given where it
// is a step's last backward; with several blocks it hears of the last one that runs. Returns what its offload did.
ResidencyStats PrefixBackward(const LayerContext& context, PrefixBatch prefixes, const LayerFinal& layer_final = {});

}  // namespace stemma::worker
