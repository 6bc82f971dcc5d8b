// The model families that can be trained: one row says what a family has and how its config.json spells it. Torch-free.
//
// Whatever depends on the family reads its row: parsing and writing config.json, the tensors (model_tensors.h), the
// command line's list. A family whose layers need no new op is a new row and nothing else.
#pragma once

#include <array>
#include <span>
#include <string_view>

namespace stemma {

// How a config.json of the family says that attention sees only a window of positions, which is not supported.
enum class WindowRule {
  kAnyWidth,         // any `sliding_window` asks for one
  kFlag,             // `use_sliding_window` asks for one, in the layers from `max_window_layers` on
  kFlagOfAllLayers,  // `use_sliding_window` asks for one, in all layers
  kWidth,  // a `sliding_window` below `max_position_embeddings` asks for one; it is 4096 where absent, none where null
};

struct Family {
  std::string_view model_type;    // in config.json, and on the command line
  std::string_view architecture;  // its only entry in config.json's `architectures`
  std::string_view models;        // the published models, for messages
  bool qkv_bias = false;          // the q, k and v projections add a bias
  bool qk_norm = false;           // each head of q and k is normalized before it is rotated
  bool experts = false;           // a router sends each token to some of a layer's MLPs
  // An absent num_key_value_heads means as many as num_attention_heads; else the field is required.
  bool kv_heads_optional = false;
  int head_size_default = 0;  // where config.json has no head_dim; 0: hidden_size / num_attention_heads
  WindowRule window = WindowRule::kAnyWidth;
  // The fields that a written config.json says are false; true is refused where one is read. Unused entries are "".
  std::array<std::string_view, 2> written_false = {};
};

// Lists the rows in the order in which messages and help texts name them.
std::span<const Family> Families();

// nullptr: there is no such family.
const Family* FindFamily(std::string_view model_type);

}  // namespace stemma
