#include "common/base/heap.h"

#include <malloc.h>

namespace stemma {

void JoinFreedBlocks() { mallopt(M_MXFAST, 0); }

}  // namespace stemma
