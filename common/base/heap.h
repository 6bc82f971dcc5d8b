// What a program asks of its heap, so that memory that it held for a while goes back to the system.
#pragma once

namespace stemma {

// Makes blocks join their free neighbours as soon as they are freed, whatever their size. Called by a program before
// its threads allocate. glibc sets blocks of up to 128 bytes aside (fastbins), as a short rollout's arrays are, and
// lets only malloc_trim join them; that gives back what lies between blocks in use, but nothing from an arena's end,
// unless it is the main thread's: a request that a stream's thread had read would stay where nothing lies behind it.
void JoinFreedBlocks();

}  // namespace stemma
