// Ranks of an axis with one known mistake, by name, for the probe: a comparison that the right ranks pass must fail on
// them.
//
//   skipped_reduction   a rank goes on with its own values and not the sums: of gradients over dp, of rows over tp
//   mean_for_sum        the sums are divided by the number of ranks
//   skipped_partial     partial gradients of tensor-parallel ranks, of norms and of shared K/V heads, are not summed
//   swapped_weights     stepped weights come back in the places of another rank's
//
// And of context-parallel ranks:
//
//   gradients_of_others   a rank gets the gK/gV of another rank's rows
//   kv_of_others          K/V of a prefix stand in the places of another rank's rows
//   cut_...               one of skipped_reduction, mean_for_sum, gradients_of_others, kv_of_others, of the rows of
//                         rollouts that are cut by rows alone; cut_log_probs_of_others: log-probs stand so
//
// And of the stages of a pipeline:
//
//   hidden_of_others          hidden states come in the places of other rows
//   hidden_gradients_dropped  their gradients are not handed on
//   tied_gradients_apart      the first and the last stage do not add up the gradients of a tied embedding
//
// And of split groups:
//
//   split_wrong_rows    gK/gV of a helper come back in the places of other rows
//   split_dropped       gK/gV of a helper are not added
//   split_twice         a helper runs Phase C of its gK/gV too: it is linear, so that is as if they came back doubled
//   split_other_layer   a helper gets K/V of the layer before
#pragma once

#include <memory>
#include <string>

#include "tests/testing/namespaces.h"
#include "worker/parallel/communicator.h"

namespace stemma::testing {

// Null: unknown name.
std::unique_ptr<Communicator> MakeControlRank(const std::string& name, std::unique_ptr<Communicator> right);

}  // namespace stemma::testing
