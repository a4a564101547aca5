/* How transactions are committed: P0 and P5 to P8 of ARCHITECTURE.md, for Spin.
 *
 * Several coordinators (PROCESSES) of one topology share a ledger and TABLES tables. Each may crash at any step, CRASHES
 * times in all, and starts again. It may pause for any time, and wake up when another one has taken over. It may not
 * learn whether a write to a table happened (a lost response). A transaction that is processed again has different
 * content, as those of opaque spouts may; a decision that no table contains yet may be revoked. The atomic steps here are
 * single compare-and-sets there, except for the check of the tables before a decision is revoked: by then all tables have
 * the epoch, so no write of an older coordinator can come in between.
 *
 * Claims: a transaction has one content, in all tables (in put); tables get transactions in order, without gaps (put);
 * nothing is published that is not decided (put); currtx passes a transaction when all tables have it (complete); and
 * whatever happens, everything is committed in the end (Judge).
 *
 * scripts/check-model explores every interleaving, and then removes one rule after the other with -D: each time one of
 * the claims must fail.
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
byte currtx = 1;                 /* …and the next transaction to commit */
byte table_epoch[TABLES], table_txid[TABLES];
byte content[TXIDS + 1];         /* of each transaction, as published to the first table */
byte attempts, crashes;          /* numbers of attempts (the last one is also the content) and of crashes */

#define crash if :: crashes < CRASHES -> crashes++; goto start :: skip fi

inline put(t, txid, what) {      /* P7: a commit is a compare-and-set on the table's version */
    atomic {
        if
#ifndef NO_EPOCH_IN_TABLES
        :: table_epoch[t] > mine -> fenced = true
#endif
        :: else ->
            if
            :: table_txid[t] >= txid -> skip               /* it happened, and its response was lost */
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
        if :: t++ :: skip fi                               /* a lost response: check again */
    :: else -> break
    od;
#ifndef CURRTX_EARLY
    if :: !fenced -> complete(txid) :: else fi;
#endif
    crash
}

inline abandon() {                 /* a decision may be revoked while no table has it; then another one is made */
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
    /* P0: the ledger's epoch, then that of every table; then a decided transaction is rolled forward */
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
