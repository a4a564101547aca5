import java.math.BigInteger;
import java.util.HashMap;
import java.util.Map;
import org.apache.storm.coordination.BatchOutputCollector;
import org.apache.storm.generated.StormTopology;
import org.apache.storm.task.TopologyContext;
import org.apache.storm.topology.OutputFieldsDeclarer;
import org.apache.storm.topology.base.BaseBatchBolt;
import org.apache.storm.topology.base.BaseTransactionalBolt;
import org.apache.storm.topology.base.BaseTransactionalSpout;
import org.apache.storm.transactional.ICommitter;
import org.apache.storm.transactional.ITransactionalSpout;
import org.apache.storm.transactional.TransactionAttempt;
import org.apache.storm.transactional.TransactionalTopologyBuilder;
import org.apache.storm.tuple.Fields;
import org.apache.storm.tuple.Tuple;
import org.apache.storm.tuple.Values;

/** The word count as a transactional topology: words, counts per task, committers by word. */
final class WordCount {
    static StormTopology topology() {
        TransactionalTopologyBuilder builder = new TransactionalTopologyBuilder("bench", "words", new Words(), Bench.TASKS);
        builder.setBolt("partial", new Partial(), Bench.TASKS).localOrShuffleGrouping("words");
        builder.setCommitterBolt("counts", new Keep(), Bench.TASKS).fieldsGrouping("partial", new Fields("word"));
        return builder.buildTopology();
    }

    static final class Words extends BaseTransactionalSpout<Long> {
        @Override
        public ITransactionalSpout.Coordinator<Long> getCoordinator(Map conf, TopologyContext context) {
            return new Planned();
        }

        @Override
        public ITransactionalSpout.Emitter<Long> getEmitter(Map conf, TopologyContext context) {
            int tasks = context.getComponentTasks(context.getThisComponentId()).size();
            return new Emitted(context.getThisTaskIndex(), tasks);
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("id", "word"));
        }
    }

    static final class Planned implements ITransactionalSpout.Coordinator<Long> {
        private long planned;

        @Override
        public Long initializeTransaction(BigInteger txid, Long previous) {
            planned = txid.longValue();
            Bench.begun(planned);
            return planned;
        }

        @Override
        public boolean isReady() {
            return planned < Bench.last;
        }

        @Override
        public void close() {}
    }

    static final class Emitted implements ITransactionalSpout.Emitter<Long> {
        private final int task;
        private final int tasks;

        Emitted(int task, int tasks) {
            this.task = task;
            this.tasks = tasks;
        }

        @Override
        public void emitBatch(TransactionAttempt attempt, Long txid, BatchOutputCollector collector) {
            long size = Bench.size(txid);
            for (int at = (int) (size * task / tasks); at < size * (task + 1) / tasks; at++) {
                collector.emit(new Values(attempt, Bench.word(txid, at)));
            }
        }

        @Override
        public void cleanupBefore(BigInteger txid) {}

        @Override
        public void close() {}
    }

    static final class Partial extends BaseBatchBolt<Object> {
        private final Map<String, int[]> counts = new HashMap<>();
        private BatchOutputCollector collector;
        private Object id;

        @Override
        public void prepare(Map conf, TopologyContext context, BatchOutputCollector collector, Object id) {
            this.collector = collector;
            this.id = id;
        }

        @Override
        public void execute(Tuple tuple) {
            counts.computeIfAbsent(tuple.getString(1), word -> new int[1])[0]++;
        }

        @Override
        public void finishBatch() {
            for (Map.Entry<String, int[]> one : counts.entrySet()) {
                collector.emit(new Values(id, one.getKey(), one.getValue()[0]));
            }
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("id", "word", "n"));
        }
    }

    static final class Keep extends BaseTransactionalBolt implements ICommitter {
        private final Map<String, int[]> counts = new HashMap<>();
        private long txid;
        private int committers;

        @Override
        public void prepare(Map conf, TopologyContext context, BatchOutputCollector collector, TransactionAttempt id) {
            txid = id.getTransactionId().longValue();
            committers = context.getComponentTasks(context.getThisComponentId()).size();
        }

        @Override
        public void execute(Tuple tuple) {
            counts.computeIfAbsent(tuple.getString(1), word -> new int[1])[0] += tuple.getInteger(2);
        }

        @Override
        public void finishBatch() {
            for (Map.Entry<String, int[]> one : counts.entrySet()) {
                Bench.Value old = Bench.state.get(one.getKey());
                if (old == null || old.txid != txid) {
                    long before = old == null ? 0 : old.n;
                    Bench.state.put(one.getKey(), new Bench.Value(txid, before + one.getValue()[0], before));
                }
            }
            Bench.committed(txid, committers);
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {}
    }

    private WordCount() {}
}
