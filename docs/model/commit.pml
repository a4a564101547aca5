/* How transactions are committed: P0 and P5 to P8 of ARCHITECTURE.md, for Spin.
 *
 * Any number of coordinators (PROCESSES) of one topology share a ledger and TABLES tables. Each crashes where it likes,
 * CRASHES times in all, and starts again; it may stand still for as long as it likes and wake up when another one has
 * taken over; whether a write to a table was made it may not learn (a lost answer). A transaction that is processed
 * again has other content, as those of opaque spouts may; a decision that no table has yet may be taken back. What is
 * atomic here is one compare-and-set there, but for the look at the tables before a decision is taken back: by then all
 * of them have the epoch, so nothing of an older one can come in between.
 *
 * Claims: a transaction has one content, in all tables (in put); tables get transactions in order, without gaps (put);
 * nothing is published that is not decided (put); currtx passes a transaction when all tables have it (complete); and
 * whatever happens, everything is committed in the end (Judge).
 *
 * scripts/check-model looks at every interleaving, and then takes one rule away after the other with -D: each time one
 * of the claims must fail.
 */
#ifndef PROCESSES
#define PROCESSES 2
#endif
#ifndef TABLES
#define TABLES 2
#endif
#ifndef TXIDS
#define TXIDS 2
#endif
#ifndef CRASHES
#define CRASHES 2
#endif

byte epoch, intent, decided;     /* the ledger: its epoch; txid and content of the live intent, 0 for none */
byte currtx = 1;                 /* …and the transaction that comes next */
byte table_epoch[TABLES], table_txid[TABLES];
byte content[TXIDS + 1];         /* of each transaction, as the first table got it */
byte attempts, crashes;          /* how often anything was processed: the content of that attempt */

#define crash if :: crashes < CRASHES -> crashes++; goto start :: skip fi

inline put(t, txid, what) {      /* P7: a commit is a compare-and-set on the table's version */
    atomic {
        if
#ifndef NO_EPOCH_IN_TABLES
        :: table_epoch[t] > mine -> fenced = true
#endif
        :: else ->
            if
            :: table_txid[t] >= txid -> skip               /* it was made, and its answer lost */
            :: else ->
                assert(table_txid[t] == txid - 1);
                assert(intent == txid && decided == what || currtx > txid);
                assert(content[txid] == 0 || content[txid] == what);
                content[txid] = what;
                table_txid[t] = txid
            fi
        fi
    }
}

inline complete(txid) {          /* P8 */
    atomic {
        if
        :: epoch == mine && currtx == txid ->
            t = 0;
            do :: t < TABLES -> assert(table_txid[t] >= txid); t++ :: else -> break od;
            currtx = txid + 1; intent = 0; decided = 0
        :: else -> fenced = true
        fi
    }
}

inline publish(txid, what) {     /* P7 of every table, then P8 */
    t = 0;
    do
    :: t < TABLES && !fenced ->
        put(t, txid, what);
        crash;
#ifdef CURRTX_EARLY
        if :: t == 0 && !fenced -> complete(txid) :: else fi;
#endif
        if :: t++ :: skip fi                               /* a lost answer: look again */
    :: else -> break
    od;
#ifndef CURRTX_EARLY
    if :: !fenced -> complete(txid) :: else fi;
#endif
    crash
}

inline abandon() {                 /* a decision may be taken back as long as no table has it; then it is made anew */
    atomic {
        seen = 0; t = 0;
        do :: t < TABLES -> if :: table_txid[t] >= intent -> seen = 1 :: else fi; t++ :: else -> break od;
        if :: epoch == mine && intent && !seen -> intent = 0; decided = 0 :: else fi;
        t = 0
    }
}

proctype Coordinator() {
    byte mine, seen, txid, what, t;
    bool fenced;
start:  skip;
    atomic { mine = 0; txid = 0; what = 0; t = 0; fenced = false; seen = epoch };
    /* P0: the ledger's epoch, then that of every table; then what is decided is rolled forward */
    if
    :: atomic { epoch == seen -> epoch++; mine = epoch }
    :: atomic { epoch != seen -> fenced = true }
    fi;
    crash;
#ifndef NO_EPOCH_IN_TABLES
    do
    :: t < TABLES && !fenced ->
        atomic {
            if :: table_epoch[t] > mine -> fenced = true :: else -> table_epoch[t] = mine; t++ fi
        };
        crash
    :: else -> break
    od;
#endif
    t = 0;
    if
    :: !fenced ->
        if
        :: abandon()                                       /* txstorm repair --abandon */
        :: skip
        fi;
        atomic { txid = intent; what = decided; if :: epoch != mine -> fenced = true :: else fi };
        if :: txid && !fenced -> publish(txid, what) :: else fi
    :: else
    fi;
    do
    :: !fenced && currtx <= TXIDS ->
        atomic { txid = currtx; attempts++; what = attempts };  /* P1 to P5: processed and staged */
        crash;
#ifdef PUBLISH_BEFORE_DECISION
        put(0, txid, what);
        crash;
#endif
        atomic {                                           /* P6: one compare-and-set decides */
            if
#ifdef NO_EPOCH_IN_LEDGER
            :: currtx == txid -> intent = txid; decided = what
#else
            :: epoch == mine && currtx == txid -> intent = txid; decided = what
#endif
            :: else -> fenced = true
            fi
        };
        crash;
        if :: !fenced -> publish(txid, what) :: else fi
    :: else -> break
    od
}

proctype Judge() {
    timeout;
    assert(currtx == TXIDS + 1)
}

init {
    atomic {
        byte n = 0;
        do :: n < PROCESSES -> run Coordinator(); n++ :: else -> break od;
        run Judge()
    }
}
