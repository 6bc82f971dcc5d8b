// How many rows the products of a drawn case's step have, and what the library takes beside them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "common/cost/context_rows.h"
#include "common/cost/rank_shape.h"
#include "stemma/v1/plan.pb.h"
#include "tests/worker/engine/bytes_cases.h"
#include "tests/worker/engine/product_scratch.h"

namespace stemma::testing {

// How many rows of the cluster's prefixes any rank runs at once, of several that share them.
inline std::set<int64_t> ContextRowCounts(const Case& c, const v1::Cluster& cluster) {
  std::vector<int64_t> lengths;
  int64_t rows = 0;
  for (const uint32_t group : cluster.prefix_groups()) {
    lengths.push_back(c.prompts[group] - 1);
    rows += lengths.back();
  }
  const int64_t ranks = c.run.mesh().cp(), block = cluster.prefix_block_rows() > 0 ? cluster.prefix_block_rows() : rows;
  const std::vector<ContextPiece> pieces = DealContextRows(lengths, cluster.prefix_block_rows(), ranks);
  std::set<int64_t> counts;
  for (int64_t begin = 0; begin < rows; begin += block) {
    for (const int64_t part : ContextRowsOfRanks(pieces, begin, std::min(begin + block, rows), ranks))
      counts.insert(part);
  }
  return counts;
}

// How many rows the products of a step have: those of each wave, and of the prefixes, at once or in blocks.
inline std::set<int64_t> ProductRows(const Case& c, const v1::StepPlan& step) {
  std::set<int64_t> counts;
  for (const v1::Cluster& cluster : step.clusters()) {
    int64_t prefix_rows = 0;
    for (const uint32_t group : cluster.prefix_groups()) prefix_rows += c.prompts[group] - 1;
    const int64_t block = cluster.prefix_block_rows();
    if (c.run.mesh().cp() > 1) counts.merge(ContextRowCounts(c, cluster));
    counts.insert(prefix_rows);
    if (block > 0) counts.insert({std::min(block, prefix_rows), prefix_rows % block});
    for (const v1::Wave& wave : cluster.waves()) {
      int64_t rows = 0;
      if (wave.cut_rows()) {
        const int64_t all = c.responses[wave.members(0).rollout()], ranks = c.run.mesh().cp();
        for (const int64_t part : ContextRowsOfRanks(DealCutRows(all, ranks), 0, all, ranks)) counts.insert(part);
        continue;
      }
      int64_t apart = 0;  // of trajectories, which are products of their own in the model's last layer
      for (const v1::WaveMember& member : wave.members()) {
        rows += c.responses[member.rollout()];
        if (cluster.prefix_groups().empty()) apart += c.prompts[member.group()] - 1;
      }
      counts.insert({rows + apart, rows, apart});
    }
  }
  counts.erase(0);
  return counts;
}

// Returns the most that the library takes beside any product of the step: it is not monotonic in the rows.
inline int64_t ProductScratchOf(const Case& c, const v1::StepPlan& step) {
  int64_t most = 0;
  for (const int64_t rows : ProductRows(c, step)) {
    most = std::max(most, ProductScratch(RankShape(c.model, c.run).config, rows));
  }
  return most;
}

}  // namespace stemma::testing
