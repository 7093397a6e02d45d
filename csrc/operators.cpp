// Every file that needs torch's headers, as one unit: reading the headers takes longer than compiling what is ours.
#include "attend_op.cpp"
#include "library.cpp"
#include "moves_op.cpp"
#include "refusal.cpp"
